"""Importing the searches, histories and thresholds leaves SciPy to the functions that need it."""

import subprocess
import sys

MODULES = "alerts assertions causes changepoint commits flakiness many_arms order rates thresholds"


def test_importing_the_modules_leaves_scipy_out():
    imports = "; ".join(f"import service.stats.{name}" for name in MODULES.split())
    program = f"import sys; {imports}; print('scipy' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
