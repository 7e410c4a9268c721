"""Toggles of realizations, which a case may set and must restore. Fault `env_leak`: it does not."""

from __future__ import annotations

import os

import torch

from gpu_runner.gdn import faults, registry
from gpu_runner.gdn.faults import Fault
from gpu_runner.gdn.ops import calls
from gpu_runner.gdn.registry import ENVIRONMENT_PREFIX, OpCtx, Realization
from gpu_runner.gdn.suite.case import case
from gpu_runner.gdn.suite.inputs import Inputs, assert_near

VARIABLE = f"{ENVIRONMENT_PREFIX}L2NORM"


@case
def l2norm_is_the_same_in_both_realizations() -> None:
    """The environment switches one operator between its realizations, which agree."""
    before = os.environ.get(VARIABLE)
    i, results = Inputs.draw((65,), seed=41), []
    for realization in (Realization.TORCH, Realization.TRITON):
        os.environ[VARIABLE] = realization
        results.append(calls.l2norm(i.q, ctx=OpCtx()).float())
    if not faults.is_on(Fault.ENV_LEAK):
        _restore(before)
    assert_near(*results, atol=1e-2 if i.q.dtype == torch.bfloat16 else 1e-6)


def _restore(value: str | None) -> None:
    os.environ.pop(VARIABLE, None)
    if value is not None:
        os.environ[VARIABLE] = value


@case
def toggles_name_operators() -> None:
    """Every LIKEWISE_GDN_REALIZE_* that is set means something: a misspelt toggle must not pass for a treatment."""
    for operator in registry.check_environment():
        assert operator in registry.OPERATORS, operator
