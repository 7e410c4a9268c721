"""Treatments applied to lists of tests: pure, in the order in which they are declared.

`order` with a seed sorts by SHA-256(seed, test): leaving one test out does not move the others.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_runner.failures import RunnerError
from gpu_runner.protocol import ArmJob, Build, SuiteDefinition, TestsMode, Treatment, TreatmentKind

SHOWN_TESTS = 5


@dataclass(frozen=True, slots=True)
class ArmTests:
    """The tests of one arm: what it will run, what every arm leaves out, and what exists here only."""

    tests: tuple[str, ...]
    left_out: tuple[str, ...]
    only_here: tuple[str, ...]


def arm_commit(arm: ArmJob) -> str:
    """Return the commit of an arm: the last commit treatment, else the arm's own."""
    treated = [item.commit for item in arm.treatments if item.kind is TreatmentKind.COMMIT and item.commit]
    return treated[-1] if treated else arm.commit


def arm_build(suite: SuiteDefinition, arm: ArmJob) -> Build:
    """Return how the tree of an arm is built: the suite's commands unless replaced, every treatment's environment."""
    commands = suite.build
    environment: dict[str, str | None] = {}
    for item in arm.treatments:
        if item.kind is TreatmentKind.BUILD:
            commands = item.commands or commands
            environment |= item.environment
    return Build(commands, environment)


def arm_environment(arm: ArmJob) -> dict[str, str | None]:
    """Return what an arm sets (None: unsets) for its tests."""
    environment: dict[str, str | None] = {}
    for item in arm.treatments:
        if item.kind in {TreatmentKind.ENVIRONMENT, TreatmentKind.TOGGLE}:
            environment |= item.environment
    return environment


def shuffle_seed(arm: ArmJob) -> int | None:
    """Return the seed of the arm's last shuffled order, None when nothing is shuffled."""
    orders = [item for item in arm.treatments if item.kind is TreatmentKind.ORDER]
    return orders[-1].seed if orders else None


def compare_listings(listings: Mapping[int, Sequence[str]], mode: TestsMode) -> dict[int, ArmTests]:
    """Return for each arm the tests that it may run, in its own order, before any treatment.

    With `intersect`, tests that some arm lacks are left out of all of them and named; with `as_built` nothing is.
    """
    sets = {arm: set(listing) for arm, listing in listings.items()}
    everywhere = set.intersection(*sets.values()) if sets else set()
    anywhere = list(dict.fromkeys(test for listing in listings.values() for test in listing))
    left_out = tuple(test for test in anywhere if test not in everywhere) if mode is TestsMode.INTERSECT else ()
    compared = {}
    for arm, listing in listings.items():
        others = set().union(*(tests for other, tests in sets.items() if other != arm))
        only_here = tuple(test for test in listing if len(sets) > 1 and test not in others)
        kept = tuple(test for test in listing if mode is TestsMode.AS_BUILT or test in everywhere)
        compared[arm] = ArmTests(kept, left_out, only_here)
    return compared


def apply_treatments(available: Sequence[str], treatments: Sequence[Treatment], victim: str) -> tuple[str, ...]:
    """Return the ordered list that an arm runs; `available` are the tests that it may run, in the framework's order.

    RunnerError: `no_such_test` (with the nearest names), `no_tests`, `bad_treatment`.
    """
    if not available:
        raise RunnerError("no_tests", "the suite lists no tests", "check paths, test_dir and arguments of the suite")
    if victim:
        _known([victim], available)
    tests = list(available)
    for item in treatments:
        tests = _apply(item, tests, available, victim)
    if not tests:
        raise RunnerError("no_tests", f"nothing is left to run after {treatments[-1].kind}", "exclude fewer tests")
    if victim and victim not in tests:
        raise RunnerError(
            "bad_treatment", f"the victim {victim!r} is excluded: nothing could be observed", "exclude other tests"
        )
    return tuple(tests)


def refuse_restored(chosen: Sequence[str], completed: Sequence[str], treatments: Sequence[Treatment]) -> None:
    """Raise RunnerError `bad_treatment` when the framework puts excluded tests back, because others need them."""
    added = set(completed) - set(chosen)
    restored = [
        test for item in treatments if item.kind is TreatmentKind.EXCLUDE for test in item.tests if test in added
    ]
    if restored:
        raise RunnerError(
            "bad_treatment",
            f"{', '.join(map(repr, restored))} cannot be left out: other tests of this arm require its fixture",
            "exclude those tests as well",
        )


def _apply(item: Treatment, tests: list[str], available: Sequence[str], victim: str) -> list[str]:
    _known(item.tests, available)
    if len(set(item.tests)) < len(item.tests):
        raise RunnerError("bad_treatment", f"{item.kind}: a test is named twice in {item.tests}", "name each once")
    named = set(item.tests)
    match item.kind:
        case TreatmentKind.EXCLUDE:
            return [test for test in tests if test not in named]
        case TreatmentKind.ALONE:
            return [victim]
        case TreatmentKind.INSERT_BEFORE:
            if victim in named:
                raise RunnerError("bad_treatment", f"{victim!r} cannot stand before itself", "name other tests")
            rest = [test for test in tests if test not in named]
            if victim not in rest:
                raise RunnerError("bad_treatment", f"insert_before: {victim!r} was excluded", "keep the victim")
            place = rest.index(victim)
            return [*rest[:place], *item.tests, *rest[place:]]
        case TreatmentKind.ORDER if item.seed is not None:
            return sorted(tests, key=lambda test: hashlib.sha256(f"{item.seed}\0{test}".encode()).digest())
        case TreatmentKind.ORDER:
            first = [test for test in item.tests if test in tests]
            return first + [test for test in tests if test not in named]
        case _:
            return tests


def _known(tests: Sequence[str], available: Sequence[str]) -> None:
    known = set(available)
    for test in tests:
        if test not in known:
            near = difflib.get_close_matches(test, available, n=3, cutoff=0.5) or list(available[:SHOWN_TESTS])
            raise RunnerError(
                "no_such_test",
                f"no test {test!r} among the {len(available)} that this arm may run",
                f"did you mean {', '.join(map(repr, near))}? A test that only some arms have needs tests = as_built",
            )
