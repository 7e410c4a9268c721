import pytest

from gpu_runner.gdn.ops.modules import is_interpreted


@pytest.fixture
def interpreter():
    assert is_interpreted(), "triton was imported before tests/gdn/conftest.py could ask for its interpreter"
