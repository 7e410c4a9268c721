"""Evidence read from the tables, and executions written to them."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from gpu_runner.protocol import (
    ContextField,
    ExecutionReport,
    Measurement,
    Outcome,
    PreparedArm,
    TestResult,
    from_json,
    to_json,
)
from service.domain import BlockState, Purpose, RunStatus
from service.experiments.model import (
    AttemptEvidence,
    BlockEvidence,
    ChildEvidence,
    Evidence,
    ExecutionEvidence,
    Finding,
    PreparedEvidence,
    TestOutcome,
)
from service.ingest.identity import TestIdentity, identity_from_ctest, identity_from_node_id
from service.signature import failure_signature
from service.store.models import (
    Arm,
    Block,
    Commit,
    CounterRow,
    Execution,
    Experiment,
    FindingRow,
    Result,
    Run,
    Suite,
    SuiteVersion,
    Test,
)
from service.store.runs import ResultRecord, RunRecord, record_run


def load_evidence(session: Session, experiment: Experiment) -> Evidence:
    """Return everything known about an experiment, blocks in issue order."""
    query = select(Block).where(Block.experiment_id == experiment.id).order_by(Block.id)
    blocks = session.scalars(query).all()
    executions = _load_executions(session, [block.id for block in blocks])
    return Evidence(
        prepared=_load_prepared(session, experiment),
        blocks=tuple(_block(block, executions) for block in blocks),
        cancelled=experiment.cancel_reason,
        children=_load_children(session, experiment),
    )


def _load_prepared(session: Session, experiment: Experiment) -> tuple[PreparedEvidence, ...]:
    query = select(Arm).where(Arm.experiment_id == experiment.id).order_by(Arm.index)
    arms = session.scalars(query).all()
    if any(arm.prepared is None for arm in arms):
        return ()
    messages = [from_json(PreparedArm, arm.prepared) for arm in arms]
    return tuple(
        PreparedEvidence(m.arm, m.listing, m.tests, m.left_out, m.only_here, m.context, m.error_code, m.error)
        for m in messages
    )


def _load_children(session: Session, experiment: Experiment) -> tuple[ChildEvidence, ...]:
    query = select(Experiment).where(Experiment.parent_id == experiment.id).order_by(Experiment.id)
    return tuple(
        ChildEvidence(child.child_key or "", latest_finding(session, child.id)) for child in session.scalars(query)
    )


def latest_finding(session: Session, experiment_id: int) -> Finding | None:
    """Return the newest finding of an experiment."""
    query = select(FindingRow).where(FindingRow.experiment_id == experiment_id).order_by(FindingRow.id.desc()).limit(1)
    row = session.scalar(query)
    return from_json(Finding, row.body) if row else None


def _block(block: Block, executions: dict[tuple[int, int], list[ExecutionEvidence]]) -> BlockEvidence:
    attempts = [
        AttemptEvidence(
            entry["attempt"],
            BlockState(entry["state"]),
            tuple(executions.get((block.id, entry["attempt"]), [])),
            entry["lost_arm"],
            entry["reason"],
        )
        for entry in block.attempts
    ]
    if block.state in (BlockState.PENDING.value, BlockState.RUNNING.value):
        attempts.append(AttemptEvidence(block.attempt, BlockState(block.state)))
    return BlockEvidence(block.index, Purpose(block.purpose), tuple(block.arms), tuple(attempts))


def _load_executions(session: Session, block_ids: list[int]) -> dict[tuple[int, int], list[ExecutionEvidence]]:
    rows = session.scalars(
        select(Execution).where(Execution.block_id.in_(block_ids)).order_by(Execution.block_id, Execution.position)
    ).all()
    run_ids = [row.run_id for row in rows if row.run_id is not None]
    outcomes = _load_outcomes(session, run_ids)
    counters: dict[int, dict[str, int]] = defaultdict(dict)
    query = select(CounterRow).where(CounterRow.run_id.in_(run_ids), CounterRow.result_id.is_(None))
    for counter in session.scalars(query):
        counters[counter.run_id][counter.name] = counter.value
    found: dict[tuple[int, int], list[ExecutionEvidence]] = defaultdict(list)
    for row in rows:
        run_id = row.run_id or 0
        found[row.block_id, row.attempt].append(
            ExecutionEvidence(
                row.arm,
                row.position,
                outcomes.get(run_id, {}),
                counters.get(run_id, {}),
                tuple(from_json(ContextField, entry) for entry in row.context),
                duration_s=row.ended_at - row.started_at,
            )
        )
    return found


def _load_outcomes(session: Session, run_ids: list[int]) -> dict[int, dict[str, TestOutcome]]:
    query = (
        select(Result.run_id, Test.node, Test.name, Result.outcome, Result.signature)
        .join(Test, Test.id == Result.test_id)
        .where(Result.run_id.in_(run_ids))
        .order_by(Result.run_id, Result.attempt)
    )
    found: dict[int, dict[str, TestOutcome]] = defaultdict(dict)
    for run_id, node, name, outcome, signature in session.execute(query):
        found[run_id][node or name] = TestOutcome(Outcome(outcome), signature)
    return found


def identity_of(framework: str, test: str) -> TestIdentity:
    """Return the identity of the runner's test id, the same that a CI report of that framework gives."""
    return identity_from_node_id(test) if framework == "pytest" else identity_from_ctest(test)


def save_prepared(session: Session, experiment: Experiment, prepared: PreparedArm) -> None:
    """Store what the runner found out about one arm; a repetition replaces nothing that counts were based on."""
    arm = session.scalars(select(Arm).where(Arm.experiment_id == experiment.id, Arm.index == prepared.arm)).one()
    arm.prepared = to_json(prepared)


def save_execution(
    session: Session, experiment: Experiment, block: Block, report: ExecutionReport, fence: int, host_id: int | None
) -> bool:
    """Store one complete execution with its run; False when it is stored already."""
    known = session.scalar(
        select(Execution.id).where(
            Execution.block_id == block.id, Execution.attempt == block.attempt, Execution.arm == report.arm
        )
    )
    if known is not None:
        return False
    suite = session.get_one(Suite, experiment.suite_id)
    arm = session.scalars(select(Arm).where(Arm.experiment_id == experiment.id, Arm.index == report.arm)).one()
    commit = session.get_one(Commit, arm.commit_id)
    framework = experiment_framework(session, experiment)
    ended = datetime.fromtimestamp(report.ended_at, UTC)
    record = RunRecord(
        key=_run_key(experiment, block, report),
        origin="experiment",
        status=RunStatus.COMPLETE,
        results=[result_record(framework, result, report.measurements) for result in report.results],
        counters=report.counters,
        measurements=[m for m in report.measurements if m.test is None],
        provider_run_id=f"experiment-{experiment.id}",
        attempt=block.attempt,
        job=arm.name,
        exit_code=report.exit_code,
        started_at=datetime.fromtimestamp(report.started_at, UTC),
        ended_at=ended,
    )
    run, _ = record_run(session, suite, commit, record, ended)
    session.add(
        Execution(
            block_id=block.id,
            attempt=block.attempt,
            arm=report.arm,
            position=report.position,
            status=report.status.value,
            fence=fence,
            host_id=host_id,
            run_id=run.id,
            run_seed=str(report.run_seed),
            exit_code=report.exit_code,
            started_at=report.started_at,
            ended_at=report.ended_at,
            context=to_json(list(report.context)),
        )
    )
    return True


def experiment_framework(session: Session, experiment: Experiment) -> str:
    """Return the framework of the experiment's suite version."""
    return str(session.get_one(SuiteVersion, experiment.suite_version_id).definition["framework"])


def result_record(framework: str, result: TestResult, measurements: Sequence[Measurement]) -> ResultRecord:
    """Return one of the runner's results as it is stored, with its signature and its own measurements."""
    signature = failure_signature(result.outcome, result.failure_type, result.message)
    return ResultRecord(
        identity=identity_of(framework, result.test),
        outcome=result.outcome.value,
        attempt=result.attempt,
        position=result.position,
        duration_s=result.duration_s,
        signature=signature or None,
        failure_type=result.failure_type,
        message=result.message,
        output=result.output,
        node=result.test,
        counters=result.counters,
        measurements=[m for m in measurements if m.test == result.test],
    )


def _run_key(experiment: Experiment, block: Block, report: ExecutionReport) -> str:
    text = f"experiment:{experiment.id}:{block.index}:{block.attempt}:{report.arm}"
    return hashlib.sha256(text.encode()).hexdigest()


def executions_of(session: Session, experiment_id: int) -> Sequence[tuple[Execution, Block, Run | None]]:
    """Return every stored execution of an experiment with its block and run, in the order they ran."""
    query = (
        select(Execution, Block, Run)
        .join(Block, Block.id == Execution.block_id)
        .outerjoin(Run, Run.id == Execution.run_id)
        .where(Block.experiment_id == experiment_id)
        .order_by(Block.id, Execution.attempt, Execution.position)
    )
    return [tuple(row) for row in session.execute(query)]  # type: ignore[misc]


def context_of(execution: Execution) -> dict[tuple[str, str], Any]:
    """Return a stored execution's context by (channel, name)."""
    return {(entry["channel"], entry["name"]): entry["value"] for entry in execution.context}
