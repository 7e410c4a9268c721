"""Evidence read in issue order: which blocks count, which are void, what the victim did in each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from service.domain import CLEAN, FAILING, BlockState, Observation, Purpose
from service.experiments.contexts import Violation, state_violations
from service.experiments.model import (
    AttemptEvidence,
    BlockEvidence,
    Evidence,
    ExecutionEvidence,
    Signature,
    TestOutcome,
)


def observe(outcome: TestOutcome | None, signature: Signature) -> Observation:
    """Return how one execution counts for the victim: None (not listed) and every non-run is `other`."""
    if outcome is None:
        return Observation.OTHER
    if outcome.outcome in CLEAN:
        return Observation.CLEAN
    if outcome.outcome in FAILING and (not signature.values or outcome.signature in signature.values):
        return Observation.MATCH
    return Observation.OTHER


@dataclass(frozen=True, slots=True)
class Drop:
    """A block that could not be completed: void three times. `violations` when state drifted each time."""

    index: int
    violations: tuple[Violation, ...]
    reasons: tuple[str, ...]

    @property
    def is_drift(self) -> bool:
        """Return whether every attempt was void because the state drifted, none because it was lost."""
        return all(reason.startswith("state: ") for reason in self.reasons)


@dataclass(frozen=True, slots=True)
class Reading:
    """The finished head of the issued blocks of one purpose.

    `counted`: (index, executions by arm) of complete blocks, in issue order. `unfinished`: blocks after that head.
    `again`: for blocks whose last attempt is void, the attempt to run next. `losses`: lost attempts by arm.
    """

    counted: tuple[tuple[int, dict[int, ExecutionEvidence]], ...]
    dropped: tuple[Drop, ...]
    unfinished: tuple[BlockEvidence, ...]
    again: dict[int, int]
    losses: dict[int, int]
    voids: int


def read_blocks(evidence: Evidence, purpose: Purpose, attempts_max: int) -> Reading:
    """Return the reading of all blocks of a purpose. Voids are decided without looking at any outcome."""
    counted: list[tuple[int, dict[int, ExecutionEvidence]]] = []
    dropped: list[Drop] = []
    unfinished: list[BlockEvidence] = []
    again: dict[int, int] = {}
    losses: dict[int, int] = {}
    voids = 0
    for block in (block for block in evidence.blocks if block.purpose is purpose):
        good, violations, reasons = _judge(block.attempts)
        voids += len(reasons)
        for attempt in block.attempts:
            if attempt.state is BlockState.LOST and attempt.lost_arm is not None:
                losses[attempt.lost_arm] = losses.get(attempt.lost_arm, 0) + 1
        last = block.attempts[-1] if block.attempts else None
        is_dropped = good is None and len(reasons) >= attempts_max
        if good is None and not is_dropped:
            unfinished.append(block)
            if last is not None and last.state in (BlockState.LOST, BlockState.COMPLETE):
                again[block.index] = last.attempt + 1
        elif unfinished:
            unfinished.append(block)
        elif good is None:
            dropped.append(Drop(block.index, violations, reasons))
        else:
            counted.append((block.index, {execution.arm: execution for execution in good.executions}))
    return Reading(tuple(counted), tuple(dropped), tuple(unfinished), again, losses, voids)


def _judge(
    attempts: Iterable[AttemptEvidence],
) -> tuple[AttemptEvidence | None, tuple[Violation, ...], tuple[str, ...]]:
    """Return the attempt that counts, the drift seen, and why each void attempt was void."""
    drift: list[Violation] = []
    reasons: list[str] = []
    for attempt in attempts:
        if attempt.state is BlockState.LOST:
            reasons.append(attempt.lost_reason or "lost")
        elif attempt.state is BlockState.COMPLETE:
            found = state_violations(execution.context for execution in attempt.executions)
            if not found:
                return attempt, tuple(drift), tuple(reasons)
            drift.extend(found)
            reasons.append("state: " + ", ".join(sorted({f"{v.channel} {v.name}" for v in found})))
    return None, tuple(drift), tuple(reasons)


def losses_are_uneven(losses: dict[int, int], arms: tuple[int, ...], level: float = 0.05) -> bool:
    """Return whether losses fell on some arm more often than chance: exact two-sided binomial, Bonferroni over arms.

    Under the null each loss falls on each arm with probability 1/K. Fixed-n test at `level`.
    """
    total = sum(losses.values())
    if total == 0 or len(arms) < 2:
        return False
    share = 1.0 / len(arms)
    tests = 1 if len(arms) == 2 else len(arms)
    return any(_binomial_two_sided(losses.get(arm, 0), total, share) * tests <= level for arm in arms)


def _binomial_two_sided(k: int, n: int, p: float) -> float:
    mass = [math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(n + 1)]
    return min(1.0, sum(m for m in mass if m <= mass[k] * (1 + 1e-9)))
