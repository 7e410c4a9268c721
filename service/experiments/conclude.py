"""The finding of an A/B: what each arm came to, with figures, sentences and the next experiment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpu_runner.protocol import Treatment
from service.domain import METHOD_VERSION, Verdict
from service.experiments import acted, explain, side_table
from service.experiments.acted import Acted
from service.experiments.evidence import Reading
from service.experiments.model import (
    ArmFinding,
    ArmSpec,
    Conclude,
    CounterCheck,
    Counts,
    Design,
    ExecutionEvidence,
    Finding,
    PreparedEvidence,
    Reason,
    Signature,
)
from service.experiments.verdicts import Decision, rate_bound, rate_interval, share_interval
from service.stats.sequential import Boundary


def changes(control: ArmSpec, arm: ArmSpec) -> tuple[Treatment, ...]:
    """Return the treatments that only one of the two arms has."""
    return tuple(item for item in arm.treatments if item not in control.treatments) + tuple(
        item for item in control.treatments if item not in arm.treatments
    )


def checks(design: Design, arm: ArmSpec, first: dict[int, ExecutionEvidence]) -> tuple[Acted, tuple[CounterCheck, ...]]:
    """Return whether counters of the first complete block show that the arm's treatments acted."""
    return acted.check_counters(changes(design.control, arm), first[0].counters, first[arm.index].counters)


def from_decision(
    design: Design,
    reading: Reading,
    arm: ArmSpec,
    decision: Decision,
    boundary: Boundary,
    prepared: dict[int, PreparedEvidence],
) -> ArmFinding:
    """Return the finding of one arm from its decision, with the figures beside it."""
    verdict = decision.verdict or Verdict.INCONCLUSIVE
    share, share_limits = share_interval(decision.control, decision.treated)
    stop = decision.stop_index
    blocks = [by_arm for index, by_arm in reading.counted if arm.index in by_arm and stop is not None and index <= stop]
    verified: tuple[CounterCheck, ...] = ()
    if blocks and acted.needs_counters(changes(design.control, arm)):
        verified = checks(design, arm, blocks[0])[1]
    return arm_finding(
        design,
        arm,
        verdict,
        control=decision.control,
        treated=decision.treated,
        stop_index=decision.stop_index,
        difference=rate_interval(decision.control, decision.treated),
        share_estimate=share if verdict is Verdict.IMPLICATED else None,
        share_explained=share_limits if verdict is Verdict.IMPLICATED else None,
        reason=decision.reason,
        more_blocks=explain.more_blocks(decision, boundary) if verdict is Verdict.INCONCLUSIVE else None,
        rate_upper_bound=rate_bound(decision.control, decision.treated) if verdict is Verdict.NOT_REPRODUCED else None,
        counters=verified,
        side_table=side_table.build(design.victim, 0, arm.index, blocks),
        method=decision.method,
        notes=explain.list_notes(design, arm, prepared),
    )


def arm_finding(design: Design, arm: ArmSpec, verdict: Verdict, **values: Any) -> ArmFinding:
    """Return the finding of one arm with its sentence; counts are empty unless given."""
    values.setdefault("control", Counts())
    values.setdefault("treated", Counts())
    values.setdefault("stop_index", None)
    finding = ArmFinding(arm.index, arm.name, verdict, "", **values)
    return replace(finding, sentence=explain.arm_sentence(design, arm, finding))


_LOUDEST = (
    Verdict.NOT_LIKE_FOR_LIKE,
    Verdict.IMPLICATED,
    Verdict.WORSENED,
    Verdict.TREATMENT_INERT,
    Verdict.NOT_REPRODUCED,
    Verdict.INCONCLUSIVE,
    Verdict.EXONERATED,
)


def whole(
    design: Design,
    arms: tuple[ArmFinding, ...],
    signature: Signature | None,
    counted: int,
    voids: int,
    executions: int,
    prepared: dict[int, PreparedEvidence],
    cancelled: str | None = None,
) -> Finding:
    """Return the finding of the experiment: the loudest arm speaks for it."""
    head = min(arms, key=lambda arm: _LOUDEST.index(arm.verdict))
    return Finding(
        verdict=head.verdict,
        sentence=head.sentence,
        arms=arms,
        explanations=explain.explanations(design, arms, prepared, cancelled),
        blocks_counted=counted,
        blocks_void=voids,
        executions=executions,
        stop_index=head.stop_index,
        signature=signature,
        next_command=explain.next_command(design, head),
        commits=tuple(dict.fromkeys(arm.commit for arm in design.arms)),
        method_version=METHOD_VERSION,
    )


def stopped(design: Design, reason: Reason, detail: str) -> Conclude:
    """Return the finding of an experiment that ended before anything was counted."""
    arms = tuple(
        arm_finding(design, arm, Verdict.INCONCLUSIVE, reason=reason, notes=(detail,)) for arm in design.treated
    )
    return Conclude(whole(design, arms, None, 0, 0, 0, {}, detail if reason is Reason.CANCELLED else None))
