"""Whether executions ran in the same context: identity fields exactly, state fields within a tolerance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_runner.protocol import ContextClass, ContextField, Treatment, TreatmentKind
from service.experiments.model import ArmSpec, Difference

FREE_MEMORY_SHARE = 0.10
DEVICE_MEMORY_MIB = 64
# Channels that may differ between blocks, because blocks may run on several hosts, but never inside one.
PER_HOST_CHANNELS = frozenset({"host", "device"})

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Violation:
    """A state field that drifted between two executions of one block."""

    channel: str
    name: str
    first: Any
    second: Any


def identity(context: Iterable[ContextField]) -> dict[_Key, Any]:
    """Return the identity fields by (channel, name)."""
    return {
        (field.channel, field.name): field.value for field in context if field.context_class is ContextClass.IDENTITY
    }


def differences(
    control: Mapping[_Key, Any], treated: Mapping[_Key, Any], declared: frozenset[_Key], arm: int
) -> tuple[Difference, ...]:
    """Return the identity fields that differ and were not declared, sorted by channel and name.

    A field that only one side reports differs; one that neither could read (None) does not.
    """
    keys = sorted(set(control) | set(treated))
    return tuple(
        Difference(channel, name, control.get((channel, name)), treated.get((channel, name)), arm)
        for channel, name in keys
        if (channel, name) not in declared and control.get((channel, name)) != treated.get((channel, name))
    )


def between_blocks(first: Mapping[_Key, Any], later: Mapping[_Key, Any], arm: int) -> tuple[Difference, ...]:
    """Return the identity fields of one arm that changed from one block to a later one; hosts may change."""
    found = differences(first, later, frozenset(), arm)
    return tuple(difference for difference in found if difference.channel not in PER_HOST_CHANNELS)


def state_violations(contexts: Iterable[tuple[ContextField, ...]]) -> tuple[Violation, ...]:
    """Return the state fields that drifted beyond tolerance inside one block, each against the first execution."""
    maps = [
        {(f.channel, f.name): f.value for f in context if f.context_class is ContextClass.STATE} for context in contexts
    ]
    if not maps:
        return ()
    first = maps[0]
    return tuple(
        Violation(channel, name, first.get((channel, name)), other.get((channel, name)))
        for other in maps[1:]
        for channel, name in sorted(set(first) | set(other))
        if not _agrees(name, first.get((channel, name)), other.get((channel, name)))
    )


def _agrees(name: str, first: Any, second: Any) -> bool:
    if first == second or first is None or second is None:
        return True
    if isinstance(first, int | float) and isinstance(second, int | float):
        if name == "memory_available_bytes":
            return abs(first - second) <= FREE_MEMORY_SHARE * max(first, second)
        if name.endswith("memory_used_mib"):
            return abs(first - second) <= DEVICE_MEMORY_MIB
    return False


def list_differences(
    control: ArmSpec,
    control_tests: tuple[str, ...],
    treated: ArmSpec,
    treated_tests: tuple[str, ...],
    *,
    as_built: bool,
) -> tuple[Difference, ...]:
    """Return how the treated arm's list departs from what its treatments say of the control's list.

    Exclude X is the control's list minus X and nothing else; insert and order keep the other tests; everything else
    keeps the list, but for commits and builds `as_built`.
    """
    only_treated = tuple(item for item in treated.treatments if item not in control.treatments)
    only_control = tuple(item for item in control.treatments if item not in treated.treatments)
    kinds = {item.kind for item in only_treated + only_control}
    if kinds & {TreatmentKind.ALONE} or (as_built and kinds & {TreatmentKind.BUILD, TreatmentKind.COMMIT}):
        return ()
    wanted = _without(control_tests, only_treated)
    found = _without(treated_tests, only_control)
    added = {
        test for item in only_treated + only_control if item.kind is TreatmentKind.INSERT_BEFORE for test in item.tests
    }
    reorders = bool(kinds & {TreatmentKind.INSERT_BEFORE, TreatmentKind.ORDER})
    if reorders:
        wanted, found = (tuple(sorted(set(tests) - added)) for tests in (wanted, found))
    if wanted == found:
        return ()
    missing = sorted(set(wanted) - set(found))
    extra = sorted(set(found) - set(wanted))
    if not missing and not extra:
        return (Difference("suite", "tests", "one order", "another order", treated.index),)
    return (Difference("suite", "tests", missing or None, extra or None, treated.index),)


def _without(tests: tuple[str, ...], treatments: tuple[Treatment, ...]) -> tuple[str, ...]:
    excluded = {test for item in treatments if item.kind is TreatmentKind.EXCLUDE for test in item.tests}
    return tuple(test for test in tests if test not in excluded)
