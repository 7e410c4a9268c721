"""The kind `ab`: one control and one or several treated arms, blocks interleaved, each arm judged against the control.

Steps: prepare (check out, build, list) -> compare what is known before anything ran -> fix the signature with at most
three uncounted probes when neither the caller nor history named one -> blocks until every arm is settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from service.domain import Observation, Purpose, Verdict
from service.experiments import acted, conclude, contexts
from service.experiments.acted import Acted
from service.experiments.evidence import Reading, losses_are_uneven, observe, read_blocks
from service.experiments.model import (
    ArmFinding,
    ArmSpec,
    BlockPlan,
    Conclude,
    Design,
    Difference,
    Evidence,
    ExecutionEvidence,
    Plan,
    PreparedEvidence,
    Reason,
    Signature,
    Step,
)
from service.experiments.treatments import declared_fields, is_aa
from service.experiments.verdicts import (
    Pair,
    decide,
    give_up,
)
from service.stats.sequential import Boundary, build_boundary

PREPARE_INDEX = -1
PROBES_MAX = 3
DROPPED_MAX = 3


def next_step(design: Design, evidence: Evidence) -> Step:
    """Return what should exist next, or the finding. Pure and repeatable: it reads all evidence at every call."""
    prepare = read_blocks(evidence, Purpose.PREPARE, design.attempts_max)
    if not evidence.prepared:
        if evidence.cancelled is not None:
            return conclude.stopped(design, Reason.CANCELLED, evidence.cancelled)
        if prepare.dropped:
            return conclude.stopped(design, Reason.HOST_LOST, "; ".join(prepare.dropped[0].reasons))
        attempt = prepare.again.get(PREPARE_INDEX, _attempt_of(evidence, PREPARE_INDEX))
        return Plan((BlockPlan(PREPARE_INDEX, Purpose.PREPARE, attempt, (0,)),))
    prepared = {arm.arm: arm for arm in evidence.prepared}
    broken = [arm for arm in evidence.prepared if arm.error is not None]
    if broken:
        names = {arm.index: arm.name for arm in design.arms}
        return conclude.stopped(design, Reason.ARM_UNBUILDABLE, "; ".join(f"{names[a.arm]}: {a.error}" for a in broken))
    early = _known_before(design, prepared)
    if early is not None:
        return early
    done = (BlockPlan(PREPARE_INDEX, Purpose.PREPARE, _attempt_of(evidence, PREPARE_INDEX), (0,)),)
    signature = design.signature
    probes: tuple[BlockPlan, ...] = ()
    if signature is None:
        signature, probes = _probe(design, evidence)
        if signature is None:
            if evidence.cancelled is not None:
                return conclude.stopped(design, Reason.CANCELLED, evidence.cancelled)
            if _is_spent(design, evidence) and len(probes) > _issued(evidence, Purpose.PROBE):
                return conclude.stopped(design, Reason.BUDGET, "no execution is left after the probes")
            return Plan(done + probes)
    return _count(design, evidence, prepared, signature, done + probes)


def _known_before(design: Design, prepared: dict[int, PreparedEvidence]) -> Conclude | None:
    """Return a verdict that listings, trees and builds already force, at no execution."""
    as_built = design.tests_mode.value == "as_built"
    control = prepared[0]
    found: list[ArmFinding] = []
    for arm in design.treated:
        treated = prepared[arm.index]
        declared = _declared(design.control, arm, as_built=as_built)
        differs = contexts.list_differences(
            design.control, control.tests, arm, treated.tests, as_built=as_built
        ) + contexts.differences(
            contexts.identity(control.context), contexts.identity(treated.context), declared, arm.index
        )
        if differs:
            found.append(conclude.arm_finding(design, arm, Verdict.NOT_LIKE_FOR_LIKE, differences=differs))
        elif not is_aa(arm.treatments) and _acted_before(design, arm, control, treated) is Acted.NOT:
            found.append(conclude.arm_finding(design, arm, Verdict.TREATMENT_INERT))
    if len(found) < len(design.treated):
        unlike = [item for item in found if item.verdict is Verdict.NOT_LIKE_FOR_LIKE]
        if not unlike:
            return None
        found = unlike
    return Conclude(conclude.whole(design, tuple(found), None, 0, 0, 0, prepared))


def _acted_before(design: Design, arm: ArmSpec, control: PreparedEvidence, treated: PreparedEvidence) -> Acted:
    return acted.before_anything_ran(design.control, arm, control, treated)


def _declared(control: ArmSpec, arm: ArmSpec, *, as_built: bool) -> frozenset[tuple[str, str]]:
    return declared_fields(arm.treatments, as_built=as_built) | declared_fields(control.treatments, as_built=as_built)


def _probe(design: Design, evidence: Evidence) -> tuple[Signature | None, tuple[BlockPlan, ...]]:
    """Return the signature fixed by uncounted probes, or None and the probes that should exist.

    The control's failure is asked for first; a treated arm's counts only when the control never failed in any probe.
    """
    reading = read_blocks(evidence, Purpose.PROBE, design.attempts_max)
    anything = Signature()
    by_arm: dict[int, str] = {}
    for _, executions in reading.counted:
        for arm, execution in sorted(executions.items()):
            outcome = execution.outcomes.get(design.victim)
            if outcome is not None and observe(outcome, anything) is Observation.MATCH and outcome.signature:
                by_arm.setdefault(arm, outcome.signature)
    finished = len(reading.counted) + len(reading.dropped)
    plans = tuple(_block_plan(design, evidence, PREPARE_INDEX - 1 - i, Purpose.PROBE, reading) for i in range(finished))
    if 0 in by_arm:
        return Signature((by_arm[0],), "the control's first failure in an uncounted probe"), plans
    if finished >= PROBES_MAX:
        if by_arm:
            arm = min(by_arm)
            return Signature(
                (by_arm[arm],), f"the first failure of {design.arms[arm].name} in an uncounted probe"
            ), plans
        return Signature((), "any failure: none was seen in the probes"), plans
    return None, (*plans, _block_plan(design, evidence, PREPARE_INDEX - 1 - finished, Purpose.PROBE, reading))


def _count(
    design: Design,
    evidence: Evidence,
    prepared: dict[int, PreparedEvidence],
    signature: Signature,
    done: tuple[BlockPlan, ...],
) -> Step:
    reading = read_blocks(evidence, Purpose.COUNT, design.attempts_max)
    findings: dict[int, ArmFinding] = {}
    active: list[ArmSpec] = []
    alpha = design.alpha / len(design.treated)
    boundary = build_boundary(design.blocks_max, alpha, design.alpha_exonerate, design.margin)
    for arm in design.treated:
        finding = _judge(design, reading, arm, signature, boundary, prepared)
        if finding is not None:
            findings[arm.index] = finding
        else:
            active.append(arm)
    finished = len(reading.counted) + len(reading.dropped)
    if active:
        reason = _stop_reason(design, evidence, reading)
        if reason is None:
            total = min(finished + design.look_ahead, design.blocks_max + len(reading.dropped))
            issued = [block.index for block in evidence.blocks if block.purpose is Purpose.COUNT]
            total = max(total, len(issued))
            arms = (0, *(arm.index for arm in active))
            plans = tuple(_block_plan(design, evidence, i, Purpose.COUNT, reading, arms) for i in range(total))
            return Plan(done + plans, signature=signature)
        for arm in active:
            pairs = _pairs(design, reading, arm, signature)
            decision = give_up(pairs, reason)
            findings[arm.index] = conclude.from_decision(design, reading, arm, decision, boundary, prepared)
    executions = sum(len(a.executions) for block in evidence.blocks for a in block.attempts)
    return Conclude(
        conclude.whole(
            design,
            tuple(findings[arm.index] for arm in design.treated),
            signature,
            max((f.control.runs for f in findings.values()), default=0),
            reading.voids,
            executions,
            prepared,
            evidence.cancelled,
        )
    )


def _stop_reason(design: Design, evidence: Evidence, reading: Reading) -> Reason | None:
    if evidence.cancelled is not None:
        return Reason.CANCELLED
    if len(reading.dropped) >= DROPPED_MAX:
        return Reason.HOST_LOST
    if not reading.unfinished and _is_spent(design, evidence):
        return Reason.BUDGET
    return None


def _is_spent(design: Design, evidence: Evidence) -> bool:
    """Return whether one more block of all arms would exceed the budget; probes and void attempts count in it."""
    if design.budget_executions is None:
        return False
    used = sum(len(attempt.executions) for block in evidence.blocks for attempt in block.attempts)
    return used + len(design.arms) > design.budget_executions


def _issued(evidence: Evidence, purpose: Purpose) -> int:
    return sum(block.purpose is purpose for block in evidence.blocks)


def _judge(
    design: Design,
    reading: Reading,
    arm: ArmSpec,
    signature: Signature,
    boundary: Boundary,
    prepared: dict[int, PreparedEvidence],
) -> ArmFinding | None:
    """Return the finding of one treated arm, None while it should go on. Rules in the order of the design."""
    blocks = [(index, by_arm) for index, by_arm in reading.counted if arm.index in by_arm and 0 in by_arm]
    differs = _undeclared(design, arm, blocks)
    if differs:
        return conclude.arm_finding(
            design, arm, Verdict.NOT_LIKE_FOR_LIKE, stop_index=blocks[0][0], differences=differs
        )
    drifted = [
        drop for drop in reading.dropped if len(drop.violations) >= 1 and all("state" in r for r in drop.reasons)
    ]
    if drifted:
        shown = tuple(Difference(v.channel, v.name, v.first, v.second, arm.index) for v in drifted[0].violations)
        return conclude.arm_finding(
            design, arm, Verdict.NOT_LIKE_FOR_LIKE, stop_index=drifted[0].index, differences=shown
        )
    if losses_are_uneven(reading.losses, tuple(a.index for a in design.arms)):
        lost = tuple(
            Difference("executions", f"lost executions of {a.name}", None, reading.losses.get(a.index, 0), arm.index)
            for a in design.arms
        )
        return conclude.arm_finding(design, arm, Verdict.NOT_LIKE_FOR_LIKE, differences=lost)
    if not blocks:
        return None
    shown_to_act = Acted.SHOWN
    if not is_aa(arm.treatments):
        shown_to_act = _acted_before(design, arm, prepared[0], prepared[arm.index])
        if acted.needs_counters(conclude.changes(design.control, arm)):
            first = blocks[0][1]
            shown_to_act, checks = conclude.checks(design, arm, first)
            if shown_to_act is Acted.NOT:
                return conclude.arm_finding(
                    design, arm, Verdict.TREATMENT_INERT, stop_index=blocks[0][0], counters=checks
                )
    pairs = _pairs(design, reading, arm, signature)
    history = (design.history.failures, design.history.runs) if design.history else None
    decision = decide(pairs, boundary, history=history, may_exonerate=shown_to_act is Acted.SHOWN)
    if decision.verdict is None:
        return None
    return conclude.from_decision(design, reading, arm, decision, boundary, prepared)


def _undeclared(
    design: Design, arm: ArmSpec, blocks: Sequence[tuple[int, dict[int, ExecutionEvidence]]]
) -> tuple[Difference, ...]:
    """Return undeclared identity differences inside the first block that shows any, or between blocks."""
    declared = _declared(design.control, arm, as_built=design.tests_mode.value == "as_built")
    base: dict[int, dict[tuple[str, str], Any]] = {}
    for _, by_arm in blocks:
        own = {index: contexts.identity(by_arm[index].context) for index in (0, arm.index)}
        found = contexts.differences(own[0], own[arm.index], declared, arm.index)
        for index, fields in own.items():
            found += contexts.between_blocks(base.setdefault(index, fields), fields, index)
        if found:
            return found
    return ()


def _pairs(design: Design, reading: Reading, arm: ArmSpec, signature: Signature) -> tuple[Pair, ...]:
    return tuple(
        Pair(
            index,
            observe(by_arm[0].outcomes.get(design.victim), signature),
            observe(by_arm[arm.index].outcomes.get(design.victim), signature),
            by_arm[0].position < by_arm[arm.index].position,
        )
        for index, by_arm in reading.counted
        if arm.index in by_arm and 0 in by_arm
    )


def block_order(seed: int, index: int, arms: Sequence[int]) -> tuple[int, ...]:
    """Return the arms of a block in the order of execution: Fisher-Yates by Philox(seed, index)."""
    rng = np.random.Generator(np.random.Philox(key=seed % 2**64, counter=(index + 2**32) % 2**64))
    return tuple(int(arms[i]) for i in rng.permutation(len(arms)))


def _block_plan(
    design: Design,
    evidence: Evidence,
    index: int,
    purpose: Purpose,
    reading: Reading,
    arms: Sequence[int] | None = None,
) -> BlockPlan:
    """Return the block as it was issued, or as it should be issued; void attempts ask for the next one."""
    for block in evidence.blocks:
        if block.index == index:
            attempt = reading.again.get(index, max((a.attempt for a in block.attempts), default=1))
            return BlockPlan(index, purpose, attempt, block.arms)
    wanted = arms if arms is not None else tuple(arm.index for arm in design.arms)
    return BlockPlan(index, purpose, 1, block_order(design.seed, index, wanted))


def _attempt_of(evidence: Evidence, index: int) -> int:
    attempts = [a.attempt for block in evidence.blocks if block.index == index for a in block.attempts]
    return max(attempts, default=1)
