"""The cases of the demonstration suite: written once, run by pytest in one process or by ctest in one each."""

from __future__ import annotations

import importlib
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from gpu_runner.gdn import faults, registry
from gpu_runner.gdn.counters import COUNTERS

MODULES = ("tactics", "operators", "loading", "environment", "models", "scratch", "speculation")
"""In the order of the suite: what a case leaves behind meets the cases after it."""

ASKED_AT_START = registry.check_environment()
"""The realizations that the environment asked for when the suite was imported."""

DEVICE_VARIABLE = "LIKEWISE_GDN_SUITE_DEVICE"
DTYPE_VARIABLE = "LIKEWISE_GDN_SUITE_DTYPE"
SEED_VARIABLE = "LIKEWISE_RUN_SEED"


@dataclass(frozen=True, slots=True)
class Case:
    """One test: a function that raises AssertionError, and the module, its group, that it lives in."""

    name: str
    group: str
    function: Callable[[], None]


_CASES: dict[str, Case] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    """Adds `function` to the suite under its own name."""
    group = function.__module__.rpartition(".")[2]
    _CASES[function.__name__] = Case(function.__name__, group, function)
    return function


@cache
def all_cases() -> dict[str, Case]:
    """Every case by name, in the order of the suite."""
    for module in MODULES:
        importlib.import_module(f"gpu_runner.gdn.suite.{module}")
    return dict(_CASES)


def run_case(name: str) -> None:
    """Runs one case and appends what it executed to $LIKEWISE_EVENTS, whether it passes or not.

    Raises the case's AssertionError; KeyError for a name that the suite does not have.
    """
    found = all_cases()[name]
    COUNTERS.reset()
    for counter, value in faults.counters().items():
        COUNTERS.add(counter, value)
    try:
        found.function()
    finally:
        registry.emit_counters()


def device() -> torch.device:
    """Where the suite computes: LIKEWISE_GDN_SUITE_DEVICE, by default the CPU; "cuda" is the current GPU's index."""
    return torch.empty(0, device=os.environ.get(DEVICE_VARIABLE, "cpu")).device


def dtype() -> torch.dtype:
    """The model dtype of the suite: LIKEWISE_GDN_SUITE_DTYPE, by default float32."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[os.environ.get(DTYPE_VARIABLE, "float32")]


def chance(purpose: str) -> random.Random:
    """The random choices of this run for one purpose: a function of LIKEWISE_RUN_SEED (0 when unset) alone."""
    return random.Random(f"{os.environ.get(SEED_VARIABLE, '0')}/{purpose}")  # noqa: S311  # not a secret


def measure(name: str, value: float) -> None:
    """Appends one measurement to $LIKEWISE_EVENTS, where that is set."""
    target = os.environ.get("LIKEWISE_EVENTS")
    if target:
        with Path(target).open("a", encoding="utf-8") as events:
            events.write(f'{{"metric": "{name}", "value": {value!r}}}\n')
