"""Which realization of an operator runs, and the counters that tell which one did."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import torch

from gpu_runner.gdn import faults
from gpu_runner.gdn.batch import Phase
from gpu_runner.gdn.counters import COUNTERS, Counters
from gpu_runner.gdn.faults import Fault
from gpu_runner.gdn.ops import tactics
from gpu_runner.gdn.ops.errors import RealizationError
from gpu_runner.gdn.ops.scratch import Scratch, default_scratch

ENVIRONMENT_PREFIX = "LIKEWISE_GDN_REALIZE_"

OPERATORS = (
    "gating",
    "conv1d",
    "l2norm",
    "cumsum",
    "kkt_solve",
    "wu",
    "delta_h",
    "chunk_o",
    "packed_decode",
    "verify_decode",
    "rmsnorm_gated",
)

ALIASES = {"chunko": "chunk_o", "deltah": "delta_h", "packeddecode": "packed_decode"}
"""Other spellings of an operator in an override or in the environment."""


class Realization(StrEnum):
    """One of the implementations of an operator."""

    TORCH = "torch"
    TRITON = "triton"


@dataclass(frozen=True, slots=True)
class OpCtx:
    """What an operator must know beside its tensors.

    layer: index of the decoder layer. phase: what kind of forward pass this is. overrides: operator (or alias) to
    realization, stronger than the environment. scratch: where intermediate results live, None: in that of the current
    stream. counters: who is told.
    """

    layer: int = 0
    phase: Phase = Phase.PREFILL
    deterministic: bool = False
    overrides: Mapping[str, Realization | str] = field(default_factory=dict)
    scratch: Scratch | None = None
    counters: Counters = COUNTERS

    def scratch_on(self, device: torch.device) -> Scratch:
        """The scratch of this call, for tensors on `device`."""
        return default_scratch(device) if self.scratch is None else self.scratch


@dataclass(frozen=True, slots=True)
class Operation:
    """One entry point of an operator: `function` in ops.reference.`module`, ops.launch.`module` and ops.guards."""

    operator: str
    module: str
    function: str

    def __call__(self, *args: Any, ctx: OpCtx, device: torch.device) -> Any:
        """The result of the selected realization, or of the torch one when the selected one declines."""
        wanted = select(self.operator, ctx.overrides, device)
        if wanted is Realization.TRITON:
            reason = _load("gpu_runner.gdn.ops.guards", self.function)(*args)
            if reason is not None:
                ctx.counters.fell_back(self.operator, reason, ctx.layer, ctx.phase)
                return _load(f"gpu_runner.gdn.ops.reference.{self.module}", self.function)(*args, ctx=ctx)
        package = "reference" if wanted is Realization.TORCH else "launch"
        result = _load(f"gpu_runner.gdn.ops.{package}.{self.module}", self.function)(*args, ctx=ctx)
        ctx.counters.fired(self.operator, wanted, ctx.layer, ctx.phase)
        return result


def select(operator: str, overrides: Mapping[str, Realization | str], device: torch.device) -> Realization:
    """The realization to try: the call's override, else the environment, else torch on a CPU and Triton on a GPU.

    RealizationError for an operator or a realization that does not exist.
    """
    requested = _overridden(operator, overrides) or from_environment(operator, os.environ)
    preferred = requested or (Realization.TRITON if device.type == "cuda" else Realization.TORCH)
    if faults.is_on(Fault.AUTOTUNE_DISK_CACHE):
        # What the first process preferred, because of its environment perhaps, is what later ones are given.
        kept = tactics.realization(operator, preferred)
        return requested or Realization(kept)
    return preferred


def from_environment(operator: str, environment: Mapping[str, str]) -> Realization | None:
    """What LIKEWISE_GDN_REALIZE_<OPERATOR or alias> asks for, None when nothing is set.

    RealizationError when a value is unknown, or when the operator and its alias disagree.
    """
    found: Realization | None = None
    for spelling in _spellings(operator):
        variable = ENVIRONMENT_PREFIX + spelling.upper()
        value = environment.get(variable)
        if value is None:
            continue
        realization = _realization(value, variable)
        if found not in {None, realization}:
            raise RealizationError(f"{variable}={value} contradicts another spelling of {operator!r}; set only one")
        found = realization
    return found


def check_environment(environment: Mapping[str, str] | None = None) -> dict[str, Realization]:
    """Every realization the environment asks for; RealizationError for a toggle that names nothing we have."""
    environment = os.environ if environment is None else environment
    for variable in environment:
        if variable.startswith(ENVIRONMENT_PREFIX):
            canonical(variable.removeprefix(ENVIRONMENT_PREFIX).lower())
    asked = {operator: from_environment(operator, environment) for operator in OPERATORS}
    return {operator: realization for operator, realization in asked.items() if realization is not None}


def canonical(name: str) -> str:
    """The operator's own name for `name` or one of its aliases; RealizationError when there is none."""
    operator = ALIASES.get(name, name)
    if operator not in OPERATORS:
        raise RealizationError(f"there is no operator {name!r}; known: {', '.join(OPERATORS)}")
    return operator


def counters() -> dict[str, int]:
    """All counters of this process, flat: see `Counters.flat`."""
    return COUNTERS.flat(OPERATORS, tuple(Realization))


def emit_counters(path: str | None = None) -> int:
    """How many counters were appended as JSON lines to `path`, by default to $LIKEWISE_EVENTS; 0 when it is unset."""
    target = path or os.environ.get("LIKEWISE_EVENTS")
    if not target:
        return 0
    values = counters()
    with Path(target).open("a", encoding="utf-8") as events:
        events.writelines(json.dumps({"counter": name, "value": n}) + "\n" for name, n in values.items())
    return len(values)


def layers_summary(operator: str, realization: Realization, layer_count: int | None = None) -> str:
    """One sentence such as "3/3 GDN layers fired, 0 fallbacks", or "never called".

    `layer_count` is the model's number of GDN layers; by default the layers that called the operator.
    """
    return COUNTERS.layers_summary(canonical(operator), realization, layer_count)


def _overridden(operator: str, overrides: Mapping[str, Realization | str]) -> Realization | None:
    for name, value in overrides.items():
        if canonical(name) == operator:
            return _realization(value, f"override {name!r}")
    return None


@cache
def _spellings(operator: str) -> tuple[str, ...]:
    return (operator, *(alias for alias, name in ALIASES.items() if name == operator))


def _realization(value: str, source: str) -> Realization:
    try:
        return Realization(value)
    except ValueError:
        known = ", ".join(Realization)
        raise RealizationError(f"{source} asks for realization {value!r}; known: {known}") from None


@cache
def _load(module: str, function: str) -> Callable[..., Any]:
    return getattr(importlib.import_module(module), function)
