"""One execution of one arm: its results with their output, in the order in which they ran, and how it was run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from gpu_runner.protocol import ContextField, from_json
from service.domain import FAILING, Purpose
from service.errors import NotFoundError
from service.store.experiments import design_of, get
from service.store.models import Block, CounterRow, Execution, Host, Project, Result, Test
from service.store.runs import read_output


@dataclass(frozen=True, slots=True)
class ResultView:
    """One attempt of one test. `output` is read for failures and the victim only; `has_output` tells of the rest."""

    test: str
    outcome: str
    attempt: int
    position: int | None
    duration_s: float | None
    failure_type: str | None
    message: str | None
    signature: str | None
    output: str | None
    has_output: bool
    is_victim: bool
    is_failing: bool


@dataclass(frozen=True, slots=True)
class ExecutionView:
    """One execution. `arms`: the block's arms by name in the order in which they ran."""

    experiment: int
    project: str
    victim: str
    block: int
    purpose: Purpose
    attempt: int
    arm: int
    arm_name: str
    position: int
    arms: tuple[tuple[int, str], ...]
    status: str
    exit_code: int | None
    run_seed: str
    host: str | None
    started_at: datetime
    duration_s: float
    results: tuple[ResultView, ...]
    counters: tuple[tuple[str, int], ...]
    context: tuple[ContextField, ...]


def execution_view(session: Session, experiment_id: int, block: int, attempt: int, arm: int) -> ExecutionView:
    """Return the execution of `arm` in an attempt of the block with this index; NotFoundError names what is missing."""
    experiment = get(session, experiment_id)
    design = design_of(experiment)
    query = (
        select(Execution, Block, Host.name)
        .join(Block, Block.id == Execution.block_id)
        .outerjoin(Host, Host.id == Execution.host_id)
        .where(
            Block.experiment_id == experiment_id,
            Block.index == block,
            Execution.attempt == attempt,
            Execution.arm == arm,
        )
    )
    row = session.execute(query).one_or_none()
    if row is None:
        name = f"{experiment_id}, block {block}, attempt {attempt}, arm {arm}"
        raise NotFoundError("stored execution", name, "It may still run, or have been lost before it ended.")
    execution, its_block, host = row
    names = {spec.index: spec.name for spec in design.arms}
    return ExecutionView(
        experiment=experiment_id,
        project=session.get_one(Project, experiment.project_id).name,
        victim=design.victim,
        block=block,
        purpose=Purpose(its_block.purpose),
        attempt=attempt,
        arm=arm,
        arm_name=names[arm],
        position=execution.position,
        arms=tuple((index, names[index]) for index in its_block.arms),
        status=execution.status,
        exit_code=execution.exit_code,
        run_seed=execution.run_seed,
        host=host,
        started_at=datetime.fromtimestamp(execution.started_at, UTC),
        duration_s=execution.ended_at - execution.started_at,
        results=_results(session, execution.run_id or 0, design.victim),
        counters=_counters(session, execution.run_id or 0),
        context=tuple(from_json(ContextField, entry) for entry in execution.context),
    )


def _results(session: Session, run_id: int, victim: str) -> tuple[ResultView, ...]:
    query = (
        select(Result, Test.node, Test.name)
        .join(Test, Test.id == Result.test_id)
        .where(Result.run_id == run_id)
        .order_by(Result.position.is_(None), Result.position, Result.id)
    )
    return tuple(_result(session, result, node or name, victim) for result, node, name in session.execute(query))


def _result(session: Session, result: Result, test: str, victim: str) -> ResultView:
    is_failing = result.outcome in FAILING
    is_shown = is_failing or test == victim
    digest = result.output_digest
    return ResultView(
        test=test,
        outcome=result.outcome,
        attempt=result.attempt,
        position=result.position,
        duration_s=result.duration_s,
        failure_type=result.failure_type,
        message=result.message,
        signature=result.signature,
        output=read_output(session, digest) if digest and is_shown else None,
        has_output=digest is not None,
        is_victim=test == victim,
        is_failing=is_failing,
    )


def _counters(session: Session, run_id: int) -> tuple[tuple[str, int], ...]:
    query = select(CounterRow.name, CounterRow.value).where(CounterRow.run_id == run_id, CounterRow.result_id.is_(None))
    return tuple((name, value) for name, value in session.execute(query.order_by(CounterRow.name)))
