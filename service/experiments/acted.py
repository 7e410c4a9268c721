"""Whether a treatment happened: declared expectations beside what the counters showed."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from gpu_runner.protocol import Expectation, Treatment, TreatmentKind
from service.experiments.model import ArmSpec, CounterCheck, PreparedEvidence


class Acted(StrEnum):
    """SHOWN: something declared moved. NOT: nothing moved, though counters were reported. UNKNOWN: no counters."""

    SHOWN = "shown"
    NOT = "not"
    UNKNOWN = "unknown"


# A listing or a tree shows what these did; whether a switch in the environment acted, only counters can tell.
_NEEDS_COUNTERS = frozenset({TreatmentKind.TOGGLE, TreatmentKind.ENVIRONMENT})


def before_anything_ran(control: ArmSpec, treated: ArmSpec, first: PreparedEvidence, second: PreparedEvidence) -> Acted:
    """Return what tree, artefacts and listings already show.

    A commit or build is inert only if the tracked tree and the artefacts hash equal; an order only if the lists are.
    Switches in the environment stay UNKNOWN here, and an arm with several treatments is SHOWN by any of them.
    """
    kinds = {item.kind for item in treated.treatments if item not in control.treatments}
    kinds |= {item.kind for item in control.treatments if item not in treated.treatments}
    kinds.discard(TreatmentKind.NONE)
    if kinds & _NEEDS_COUNTERS and not kinds - _NEEDS_COUNTERS:
        return Acted.UNKNOWN
    if first.tests != second.tests:
        return Acted.SHOWN
    if kinds & {TreatmentKind.COMMIT, TreatmentKind.BUILD}:
        hashes = [
            {f.name: f.value for f in arm.context if f.channel == "software" and f.name in ("tree_hash", "artefacts")}
            for arm in (first, second)
        ]
        if None in hashes[0].values() or not hashes[0]:
            return Acted.UNKNOWN
        if hashes[0] != hashes[1]:
            return Acted.SHOWN
    return Acted.UNKNOWN if kinds & _NEEDS_COUNTERS else Acted.NOT


def needs_counters(treatments: tuple[Treatment, ...]) -> bool:
    """Return whether only counters can show that these treatments acted."""
    kinds = {item.kind for item in treatments} - {TreatmentKind.NONE}
    return bool(kinds) and kinds <= _NEEDS_COUNTERS


def check_counters(
    treatments: tuple[Treatment, ...], control: Mapping[str, int], treated: Mapping[str, int]
) -> tuple[Acted, tuple[CounterCheck, ...]]:
    """Return whether the treatments acted, and each expectation beside the counters of the first complete block.

    A counter that is not reported is unknown, never zero. An expectation shows it when it holds and the counter moved;
    without expectations, any counter that differs does.
    """
    expectations = [expectation for item in treatments for expectation in item.expect]
    if not expectations:
        names = sorted(set(control) | set(treated))
        moved = [name for name in names if control.get(name) != treated.get(name)]
        checks = tuple(CounterCheck(n, "differs", control.get(n), treated.get(n), holds=True) for n in moved)
        return (Acted.SHOWN if moved else Acted.NOT if names else Acted.UNKNOWN), checks
    checks = tuple(_check(item, control.get(item.counter), treated.get(item.counter)) for item in expectations)
    if any(check.holds and check.before != check.after for check in checks):
        return Acted.SHOWN, checks
    if any(check.holds is None for check in checks):
        return Acted.UNKNOWN, checks
    return Acted.NOT, checks


def _check(expectation: Expectation, before: int | None, after: int | None) -> CounterCheck:
    holds = None
    if before is not None and after is not None:
        holds = _is(expectation.before, before) and _is(expectation.after, after)
    return CounterCheck(expectation.counter, f"{expectation.before} -> {expectation.after}", before, after, holds)


def _is(wanted: str, value: int) -> bool:
    return wanted == "any" or (value > 0) == (wanted == ">0")


def describe_check(check: CounterCheck) -> str:
    """Return one check in words; zero on both sides is "never called", not "declined"."""
    before, after = (("not reported" if v is None else str(v)) for v in (check.before, check.after))
    if check.before == 0 and check.after == 0:
        return f"{check.counter}: never called in either arm (expected {check.expected})"
    return f"{check.counter}: {before} in the control, {after} in the treated arm (expected {check.expected})"
