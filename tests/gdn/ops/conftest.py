import pytest
import torch

from gpu_runner.gdn.ops.modules import is_interpreted
from tests.gdn.ops.cases import Poisoned


@pytest.fixture
def poisoned(monkeypatch):
    """Every new tensor holds NaN."""
    return Poisoned(monkeypatch)


@pytest.fixture
def interpreter():
    """Kernels run on the CPU."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: python -m gpu_runner.gdn.ops.check checks the kernels there")
    assert is_interpreted(), "triton was imported before tests/gdn/conftest.py could ask for its interpreter"
