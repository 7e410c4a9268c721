"""Importing the statistics is cheap: SciPy is loaded by the functions that need it."""

import subprocess
import sys

import pytest

TWO_ARMS = ("intervals", "compare", "sequential", "futility", "operating", "evalues", "extension", "power", "sign_test")


@pytest.mark.parametrize("module", TWO_ARMS)
def test_importing_a_module_leaves_scipy_out(module):
    program = f"import sys, service.stats.{module}; print('scipy' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
