"""A simulated runner: evidence for `next_step` from failure rates, without processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gpu_runner.protocol import ContextClass, ContextField, Outcome, Treatment, TreatmentKind
from service.domain import ArmRole, BlockState, Purpose
from service.experiments.ab import next_step
from service.experiments.model import (
    ArmSpec,
    AttemptEvidence,
    BlockEvidence,
    BlockPlan,
    Conclude,
    Design,
    Evidence,
    ExecutionEvidence,
    Finding,
    PreparedEvidence,
    Signature,
    TestOutcome,
)  # fmt: skip

VICTIM = "gate"
TESTS = ("first", "suspect", "polluter", VICTIM, "last")
SAME = Signature(("failed:AssertionError",), "given")
MATCH = TestOutcome(Outcome.FAILED, "failed:AssertionError")
CLEAN = TestOutcome(Outcome.PASSED)
OTHER = TestOutcome(Outcome.CRASHED, "crashed:SIGSEGV")

Draw = Callable[[int, np.random.Generator], TestOutcome]


def design(*treatments: tuple[Treatment, ...], control: tuple[Treatment, ...] = (), **values: object) -> Design:
    arms = [ArmSpec(0, "control", ArmRole.CONTROL, "a" * 40, control)]
    arms += [ArmSpec(i, f"treated {i}", ArmRole.TREATED, "a" * 40, t) for i, t in enumerate(treatments, start=1)]
    base = Design(VICTIM, tuple(arms), seed=1, signature=SAME, project="acme/engine", suite="cuda")
    return replace(base, **values)


def exclude(test: str) -> tuple[Treatment, ...]:
    return (Treatment(TreatmentKind.EXCLUDE, tests=(test,)),)


def tests_of(treatments: tuple[Treatment, ...]) -> tuple[str, ...]:
    tests = TESTS
    for item in treatments:
        if item.kind is TreatmentKind.EXCLUDE:
            tests = tuple(test for test in tests if test not in item.tests)
        elif item.kind is TreatmentKind.ALONE:
            tests = (VICTIM,)
        elif item.kind is TreatmentKind.INSERT_BEFORE:
            rest = tuple(test for test in tests if test not in item.tests)
            at = rest.index(VICTIM)
            tests = rest[:at] + item.tests + rest[at:]
    return tests


def context(treatments: tuple[Treatment, ...], **extra: object) -> tuple[ContextField, ...]:
    fields = {
        ("suite", "tests"): list(tests_of(treatments)),
        ("software", "tree_hash"): "t1",
        ("software", "artefacts"): "b1",
    }
    for item in treatments:
        if item.kind in (TreatmentKind.ENVIRONMENT, TreatmentKind.TOGGLE):
            fields |= {("process", f"environment.{name}"): value for name, value in item.environment.items()}
    for key, value in extra.items():
        fields[tuple(key.split("__", 1))] = value
    return tuple(ContextField(c, n, ContextClass.IDENTITY, v) for (c, n), v in fields.items())


def prepared(given: Design) -> tuple[PreparedEvidence, ...]:
    return tuple(
        PreparedEvidence(arm.index, TESTS, tests_of(arm.treatments), (), (), context(arm.treatments), None, None)
        for arm in given.arms
    )


def run_block(given: Design, plan: BlockPlan, draw: Draw, counters: Callable[[int], dict[str, int]]) -> BlockEvidence:
    executions = []
    for position, arm in enumerate(plan.arms):
        rng = np.random.default_rng([given.seed, plan.index + 100, arm])
        outcomes = dict.fromkeys(tests_of(given.arms[arm].treatments), CLEAN)
        outcomes[given.victim] = draw(arm, rng)
        executions.append(
            ExecutionEvidence(arm, position, outcomes, counters(arm), context(given.arms[arm].treatments))
        )
    attempt = AttemptEvidence(plan.attempt, BlockState.COMPLETE, tuple(executions))
    return BlockEvidence(plan.index, plan.purpose, plan.arms, (attempt,))


def no_counters(arm: int) -> dict[str, int]:
    return {}


def simulate(given: Design, draw: Draw, counters: Callable[[int], dict[str, int]] = no_counters) -> Finding:
    """Returns the finding of a whole experiment whose executions come from `draw(arm, rng)`."""
    evidence = Evidence()
    while True:
        step = next_step(given, evidence)
        if isinstance(step, Conclude):
            return step.finding
        known = {block.index for block in evidence.blocks}
        new = [plan for plan in step.blocks if plan.index not in known]
        assert new, "a plan that issues nothing new while nothing is pending never ends"
        for plan in new:
            if plan.purpose is Purpose.PREPARE:
                block = BlockEvidence(plan.index, plan.purpose, plan.arms, (AttemptEvidence(1, BlockState.COMPLETE),))
                evidence = replace(evidence, prepared=prepared(given), blocks=(*evidence.blocks, block))
            else:
                block = run_block(given, plan, draw, counters)
                evidence = replace(evidence, blocks=(*evidence.blocks, block))


def rates(*by_arm: float) -> Draw:
    """Returns a draw in which arm i fails with the signature at rate by_arm[i]."""
    return lambda arm, rng: MATCH if rng.random() < by_arm[arm] else CLEAN
