"""Where one experiment stands: what ran, what runs, what may still run, and the finding. Page, API and CLI show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gpu_runner.protocol import Progress, from_json
from service.domain import BlockState, ExperimentState, Origin, Purpose
from service.experiments.contexts import state_violations
from service.experiments.evidence import Reading, observe, read_blocks
from service.experiments.explain import change
from service.experiments.model import (
    ArmFinding,
    ArmSpec,
    AttemptEvidence,
    BlockEvidence,
    Counts,
    Design,
    Evidence,
    Finding,
    Interval,
    Signature,
)
from service.experiments.verdicts import rate_interval, share_interval
from service.history.arms import ArmView, arm_views
from service.store.evidence import experiment_framework, latest_finding, load_evidence
from service.store.experiments import LIVE, blocks_of, design_of, get
from service.store.models import Block, Execution, Experiment, Host, Project, Suite


class CellState(StrEnum):
    """How one execution is shown. DONE: it ran, and counts once its block is complete."""

    MATCH = "match"
    CLEAN = "clean"
    OTHER = "other"
    VOID = "void"
    DONE = "done"
    RUNNING = "running"
    PENDING = "pending"


class AttemptStanding(StrEnum):
    """What one attempt of a block is worth. WAITING: complete, but an earlier block is not; AFTER_STOP: shown only."""

    COUNTED = "counted"
    UNCOUNTED = "uncounted"
    WAITING = "waiting"
    AFTER_STOP = "after_stop"
    VOID = "void"
    RUNNING = "running"
    PENDING = "pending"


@dataclass(frozen=True, slots=True)
class Cell:
    """One execution of one arm, at its place in the block."""

    arm: int
    state: CellState
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt of one block; cells in the order of execution. `reason`: why it is void."""

    index: int
    purpose: Purpose
    attempt: int
    standing: AttemptStanding
    cells: tuple[Cell, ...]
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A treated arm beside the control in the same complete blocks: up to the stop once there is a finding.

    `difference`: failure rate control minus treated; while it runs it is shown only and decides nothing.
    """

    arm: int
    name: str
    change: str
    control: Counts
    treated: Counts
    difference: Interval | None
    share_estimate: float | None
    share: Interval | None
    finding: ArmFinding | None


@dataclass(frozen=True, slots=True)
class Running:
    """A block that a worker holds now. `done` of `total` tests of the running execution, when the runner said so."""

    index: int
    purpose: Purpose
    attempt: int
    phase: str | None
    arm: int | None
    arm_name: str | None
    test: str | None
    done: int | None
    total: int | None
    host: str | None


@dataclass(frozen=True, slots=True)
class ExperimentView:
    """Everything that is shown of one experiment. `blocks_done` of at most `blocks_max` are complete and counted.

    `mark` changes whenever stored evidence, state or finding do. `block_s`: mean seconds of a complete block, None
    before the first one.
    """

    id: int
    kind: str
    project: str
    suite: str
    framework: str
    victim: str
    state: ExperimentState
    is_live: bool
    origin: Origin
    requested_by: str
    created_at: datetime
    finished_at: datetime | None
    cancel_reason: str | None
    parent_id: int | None
    source: str
    design: Design
    signature: Signature | None
    arms: tuple[ArmView, ...]
    comparisons: tuple[Comparison, ...]
    attempts: tuple[AttemptView, ...]
    running: tuple[Running, ...]
    waiting: int
    blocks_done: int
    blocks_max: int
    voids: int
    executions: int
    block_s: float | None
    stop_index: int | None
    finding: Finding | None
    mark: str

    @property
    def blocks_possible(self) -> int:
        """Return how many more blocks may be run; none once the experiment is over."""
        return max(0, self.blocks_max - self.blocks_done) if self.finding is None else 0


def experiment_view(session: Session, experiment_id: int) -> ExperimentView:
    """Return where the experiment stands; NotFoundError when there is none."""
    experiment = get(session, experiment_id)
    return view_of(session, experiment, load_evidence(session, experiment))


def view_of(session: Session, experiment: Experiment, evidence: Evidence) -> ExperimentView:
    """Return where an experiment stands whose evidence was loaded already."""
    design = design_of(experiment)
    finding = latest_finding(session, experiment.id)
    blocks = blocks_of(session, experiment.id)
    reading = read_blocks(evidence, Purpose.COUNT, design.attempts_max)
    done = _finished_arms(session, blocks)
    running = running_blocks(session, experiment)
    return ExperimentView(
        id=experiment.id,
        kind=experiment.kind,
        project=session.get_one(Project, experiment.project_id).name,
        suite=session.get_one(Suite, experiment.suite_id).name,
        framework=experiment_framework(session, experiment),
        victim=experiment.victim,
        state=ExperimentState(experiment.state),
        is_live=experiment.state in LIVE,
        origin=Origin(experiment.origin),
        requested_by=experiment.requested_by,
        created_at=experiment.created_at,
        finished_at=experiment.finished_at,
        cancel_reason=experiment.cancel_reason,
        parent_id=experiment.parent_id,
        source=experiment.source,
        design=design,
        signature=design.signature,
        arms=arm_views(design, evidence.prepared),
        comparisons=compare(design, reading, finding),
        attempts=attempt_views(design, evidence, reading, finding, running, done),
        running=running,
        waiting=sum(block.state == BlockState.PENDING.value for block in blocks),
        blocks_done=finding.blocks_counted if finding else len(reading.counted),
        blocks_max=design.blocks_max,
        voids=reading.voids,
        executions=sum(len(a.executions) for b in evidence.blocks for a in b.attempts) + sum(map(len, done.values())),
        block_s=_block_seconds(reading),
        stop_index=finding.stop_index if finding else None,
        finding=finding,
        mark=evidence_mark(session, experiment),
    )


def compare(design: Design, reading: Reading, finding: Finding | None) -> tuple[Comparison, ...]:
    """Return each treated arm beside the control: the finding's counts, or those so far in complete blocks."""
    found = {arm.arm: arm for arm in finding.arms} if finding else {}
    return tuple(_compare_arm(design, reading, arm, found.get(arm.index)) for arm in design.treated)


def _compare_arm(design: Design, reading: Reading, arm: ArmSpec, found: ArmFinding | None) -> Comparison:
    if found is not None:
        control, treated = found.control, found.treated
    else:
        signature = design.signature or Signature()
        control, treated = Counts(), Counts()
        for _, by_arm in reading.counted:
            if 0 in by_arm and arm.index in by_arm:
                control = control.add(observe(by_arm[0].outcomes.get(design.victim), signature))
                treated = treated.add(observe(by_arm[arm.index].outcomes.get(design.victim), signature))
    share, limits = share_interval(control, treated)
    return Comparison(
        arm.index,
        arm.name,
        change(design, arm),
        control,
        treated,
        rate_interval(control, treated),
        share,
        limits,
        found,
    )


def attempt_views(
    design: Design,
    evidence: Evidence,
    reading: Reading,
    finding: Finding | None,
    running: Sequence[Running] = (),
    done: Mapping[int, frozenset[int]] | None = None,
) -> tuple[AttemptView, ...]:
    """Return every attempt of every block in issue order, preparation left out.

    `running` and `done` tell which arms of the running blocks run now and which are stored already, by block index.
    """
    done = done or {}
    now = {block.index: block.arm for block in running}
    counted = {index for index, _ in reading.counted}
    stops = [arm.stop_index for arm in finding.arms if arm.stop_index is not None] if finding else []
    last = max(stops, default=None)
    views: list[AttemptView] = []
    for block in evidence.blocks:
        if block.purpose is Purpose.PREPARE:
            continue
        for attempt in block.attempts:
            reason = void_reason(attempt)
            standing = _standing(block, attempt, reason, is_counted=block.index in counted, last=last)
            cells = _cells(design, block, attempt, standing, now.get(block.index), done.get(block.index, frozenset()))
            views.append(AttemptView(block.index, block.purpose, attempt.attempt, standing, cells, reason))
    return tuple(views)


def void_reason(attempt: AttemptEvidence) -> str | None:
    """Return why an attempt counts for nothing, None when it does or may still."""
    if attempt.state is BlockState.LOST:
        return attempt.lost_reason or "lost"
    if attempt.state is BlockState.COMPLETE:
        drift = state_violations(execution.context for execution in attempt.executions)
        if drift:
            return "state: " + ", ".join(sorted({f"{v.channel} {v.name}" for v in drift}))
    return None


def _standing(
    block: BlockEvidence, attempt: AttemptEvidence, reason: str | None, *, is_counted: bool, last: int | None
) -> AttemptStanding:
    if reason is not None:
        return AttemptStanding.VOID
    if attempt.state is BlockState.RUNNING:
        return AttemptStanding.RUNNING
    if attempt.state is BlockState.PENDING:
        return AttemptStanding.PENDING
    if block.purpose is not Purpose.COUNT:
        return AttemptStanding.UNCOUNTED
    if last is not None and block.index > last:
        return AttemptStanding.AFTER_STOP
    return AttemptStanding.COUNTED if is_counted else AttemptStanding.WAITING


def _cells(
    design: Design,
    block: BlockEvidence,
    attempt: AttemptEvidence,
    standing: AttemptStanding,
    now: int | None,
    done: frozenset[int],
) -> tuple[Cell, ...]:
    executions = {execution.arm: execution for execution in attempt.executions}
    signature = design.signature or Signature()
    cells = []
    for arm in block.arms:
        execution = executions.get(arm)
        if standing is AttemptStanding.VOID:
            state = CellState.VOID
        elif standing is AttemptStanding.PENDING:
            state = CellState.PENDING
        elif standing is AttemptStanding.RUNNING:
            state = CellState.DONE if arm in done else CellState.RUNNING if arm == now else CellState.PENDING
        else:
            outcome = execution.outcomes.get(design.victim) if execution else None
            state = CellState(observe(outcome, signature).value)
        cells.append(Cell(arm, state, execution.duration_s if execution else None))
    return tuple(cells)


def running_blocks(session: Session, experiment: Experiment) -> tuple[Running, ...]:
    """Return the blocks that workers hold now; cheap enough to ask every second."""
    query = (
        select(Block, Host.name)
        .outerjoin(Host, Host.id == Block.host_id)
        .where(Block.experiment_id == experiment.id, Block.state == BlockState.RUNNING.value)
        .order_by(Block.id)
    )
    names = {arm["index"]: arm["name"] for arm in experiment.design["arms"]}
    return tuple(_running(block, host, names) for block, host in session.execute(query))


def _running(block: Block, host: str | None, names: Mapping[int, str]) -> Running:
    at = from_json(Progress, block.progress) if block.progress else None
    return Running(
        index=block.index,
        purpose=Purpose(block.purpose),
        attempt=block.attempt,
        phase=at.phase if at else None,
        arm=at.arm if at else None,
        arm_name=names.get(at.arm) if at and at.arm is not None else None,
        test=at.test if at else None,
        done=at.done if at else None,
        total=at.total if at else None,
        host=host,
    )


def evidence_mark(session: Session, experiment: Experiment) -> str:
    """Return a short text that changes whenever state, blocks or stored executions of the experiment change."""
    blocks = session.execute(
        select(func.count(Block.id), func.sum(Block.attempt), func.sum(Block.fence)).where(
            Block.experiment_id == experiment.id
        )
    ).one()
    executions = session.scalar(
        select(func.count(Execution.id))
        .join(Block, Block.id == Execution.block_id)
        .where(Block.experiment_id == experiment.id)
    )
    cancelled = "c" if experiment.cancel_reason else ""
    parts: tuple[Any, ...] = (experiment.state + cancelled, *blocks, executions)
    return "-".join(str(part or 0) for part in parts)


def _finished_arms(session: Session, blocks: Sequence[Block]) -> dict[int, frozenset[int]]:
    """Return, by index of each running block, the arms whose execution is stored in its current attempt."""
    running = {block.id: block for block in blocks if block.state == BlockState.RUNNING.value}
    if not running:
        return {}
    query = select(Execution.block_id, Execution.attempt, Execution.arm).where(Execution.block_id.in_(running))
    found: dict[int, set[int]] = {}
    for block_id, attempt, arm in session.execute(query):
        if attempt == running[block_id].attempt:
            found.setdefault(running[block_id].index, set()).add(arm)
    return {index: frozenset(arms) for index, arms in found.items()}


def _block_seconds(reading: Reading) -> float | None:
    if not reading.counted:
        return None
    total = sum(execution.duration_s for _, by_arm in reading.counted for execution in by_arm.values())
    return total / len(reading.counted)
