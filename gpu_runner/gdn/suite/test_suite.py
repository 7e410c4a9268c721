"""All cases in one process, in the order of the suite."""

import pytest

from gpu_runner.gdn.suite.case import all_cases, run_case


@pytest.mark.parametrize("name", all_cases())
def test_gdn(name: str) -> None:
    """One case."""
    run_case(name)
