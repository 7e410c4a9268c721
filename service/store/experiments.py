"""Experiments: created, advanced one step, cancelled, concluded. `advance` is load, decide, save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from gpu_runner.protocol import SuiteDefinition, canonical_digest, from_json, to_json
from service.domain import BlockState, ExperimentState, Origin
from service.errors import ConflictError, InvalidValueError, NotFoundError
from service.experiments.model import BlockPlan, ChildPlan, Conclude, Design, Finding, Plan, Signature
from service.experiments.registry import next_step
from service.store.catalog import add_commit, add_suite, add_version, definition_of, get_project
from service.store.evidence import load_evidence
from service.store.messages import add_message
from service.store.models import Arm, Block, Experiment, FindingRow, Project, SuiteVersion

LIVE = (ExperimentState.QUEUED.value, ExperimentState.RUNNING.value)


@dataclass(frozen=True, slots=True)
class Request:
    """An experiment as somebody asks for it; `design` is complete. `is_detached`: no worker of ours runs it."""

    kind: str
    design: Design
    definition: SuiteDefinition
    source: str
    origin: Origin
    requested_by: str = ""
    priority: int = 100
    is_detached: bool = False


def create(session: Session, request: Request, now: datetime, parent: tuple[int, str] | None = None) -> Experiment:
    """Store an experiment with its arms and, unless detached, the nudge that schedules it."""
    project = get_project(session, request.design.project)
    suite = add_suite(session, project, request.design.suite)
    version = add_version(session, suite, request.definition, now)
    state = ExperimentState.DETACHED if request.is_detached else ExperimentState.QUEUED
    experiment = Experiment(
        project_id=project.id,
        suite_id=suite.id,
        suite_version_id=version.id,
        kind=request.kind,
        victim=request.design.victim,
        design=to_json(request.design),
        signature=to_json(request.design.signature),
        source=request.source,
        parent_id=parent[0] if parent else None,
        child_key=parent[1] if parent else None,
        requested_by=request.requested_by,
        origin=request.origin.value,
        priority=request.priority,
        state=state.value,
        created_at=now,
    )
    session.add(experiment)
    session.flush()
    _add_arms(session, project, experiment, request.design)
    if not request.is_detached:
        add_message(session, "schedule", experiment.id, now)
    return experiment


def _add_arms(session: Session, project: Project, experiment: Experiment, design: Design) -> None:
    known = set(session.scalars(select(Arm.index).where(Arm.experiment_id == experiment.id)))
    for arm in design.arms:
        if arm.index not in known:
            commit = add_commit(session, project, arm.commit)
            session.add(
                Arm(
                    experiment_id=experiment.id,
                    index=arm.index,
                    name=arm.name,
                    role=arm.role.value,
                    commit_id=commit.id,
                    treatments=to_json(list(arm.treatments)),
                )
            )
    session.flush()


def get(session: Session, experiment_id: int) -> Experiment:
    """Return the experiment; NotFoundError when there is none."""
    experiment = session.get(Experiment, experiment_id)
    if experiment is None:
        raise NotFoundError("experiment", experiment_id, "`likewise list` shows them.")
    return experiment


def design_of(experiment: Experiment) -> Design:
    """Return the design, with the signature that probes fixed."""
    design = from_json(Design, experiment.design)
    if experiment.signature is not None and design.signature is None:
        design = replace(design, signature=from_json(Signature, experiment.signature))
    return design


def suite_definition(session: Session, experiment: Experiment) -> SuiteDefinition:
    """Return the definition that the experiment copied."""
    return definition_of(session.get_one(SuiteVersion, experiment.suite_version_id))


def advance(session: Session, experiment_id: int, now: datetime) -> Finding | None:
    """Decide the next step from all evidence and save it: blocks with their nudges, or the finding.

    Repeating it issues nothing twice. Returns the finding once there is one.
    """
    experiment = session.get(Experiment, experiment_id, with_for_update=True)
    if experiment is None or experiment.state == ExperimentState.CONCLUDED.value:
        return None
    evidence = load_evidence(session, experiment)
    step = next_step(experiment.kind, from_json(Design, experiment.design), evidence)
    if isinstance(step, Conclude):
        save_finding(session, experiment, step.finding, canonical_digest(evidence), now)
        return step.finding
    _save_plan(session, experiment, step, now)
    return None


def _save_plan(session: Session, experiment: Experiment, plan: Plan, now: datetime) -> None:
    if experiment.state == ExperimentState.QUEUED.value:
        experiment.state = ExperimentState.RUNNING.value
    if plan.signature is not None and experiment.signature is None:
        experiment.signature = to_json(plan.signature)
    known = {block.index: block for block in blocks_of(session, experiment.id)}
    for wanted in plan.blocks:
        block = known.get(wanted.index)
        if block is None:
            block = insert_block(session, experiment, wanted)
        elif wanted.attempt > block.attempt:
            block.attempt = wanted.attempt
            block.state = BlockState.PENDING.value
        if block.state == BlockState.PENDING.value and experiment.state != ExperimentState.DETACHED.value:
            add_message(session, "execute", block.id, now)
    for child in plan.children:
        _ensure_child(session, experiment, child, now)


def insert_block(session: Session, experiment: Experiment, plan: BlockPlan) -> Block:
    """Store a block that should exist."""
    block = Block(
        experiment_id=experiment.id,
        index=plan.index,
        purpose=plan.purpose.value,
        arms=list(plan.arms),
        state=BlockState.PENDING.value,
        attempt=plan.attempt,
        attempts=[],
    )
    session.add(block)
    session.flush()
    return block


def _ensure_child(session: Session, parent: Experiment, child: ChildPlan, now: datetime) -> None:
    query = select(Experiment.id).where(Experiment.parent_id == parent.id, Experiment.child_key == child.key)
    if session.scalar(query) is None:
        request = Request(
            child.kind,
            child.design,
            suite_definition(session, parent),
            parent.source,
            Origin(parent.origin),
            parent.requested_by,
            parent.priority,
        )
        create(session, request, now, parent=(parent.id, child.key))


def blocks_of(session: Session, experiment_id: int) -> Sequence[Block]:
    """Return an experiment's blocks in issue order."""
    return session.scalars(select(Block).where(Block.experiment_id == experiment_id).order_by(Block.id)).all()


def save_finding(
    session: Session, experiment: Experiment, finding: Finding, evidence_digest: str, now: datetime
) -> None:
    """Store the conclusion and end the experiment; its parent, if any, is nudged."""
    session.add(
        FindingRow(
            experiment_id=experiment.id,
            verdict=finding.verdict.value,
            stop_index=finding.stop_index,
            method_version=finding.method_version,
            evidence_digest=evidence_digest,
            body=to_json(finding),
            created_at=now,
        )
    )
    experiment.state = ExperimentState.CONCLUDED.value
    experiment.finished_at = now
    add_message(session, "report", experiment.id, now)
    if experiment.parent_id is not None:
        add_message(session, "analyse", experiment.parent_id, now)


def cancel(session: Session, experiment_id: int, reason: str, now: datetime) -> Experiment:
    """Ask an experiment to end; what it showed so far is kept and judged. ConflictError when it is over."""
    if not reason.strip():
        raise InvalidValueError("reason", reason, "a cancellation needs a reason")
    experiment = get(session, experiment_id)
    if experiment.state == ExperimentState.CONCLUDED.value:
        raise ConflictError(
            f"experiment {experiment_id} has ended already", f"`likewise show {experiment_id}` shows it."
        )
    experiment.cancel_reason = reason.strip()
    add_message(session, "analyse", experiment.id, now)
    return experiment


def live(session: Session) -> Sequence[Experiment]:
    """Return the experiments that workers should be busy with, most urgent first."""
    query = select(Experiment).where(Experiment.state.in_(LIVE)).order_by(Experiment.priority, Experiment.id)
    return session.scalars(query).all()
