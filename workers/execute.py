"""One block on this worker's slot: claim a lease, spawn the runner, store its lines as they come.

The task is acknowledged when it starts; the lease, not the broker, tells whether it is still alive. Every result is
committed when its line arrives, under the fence: a worker that comes back late can write nothing.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from gpu_runner.protocol import (
    ArmJob,
    BlockJob,
    Done,
    ExecutionJob,
    ExecutionReport,
    ExecutionStatus,
    Failure,
    Hello,
    MalformedMessageError,
    PreparedArm,
    PrepareJob,
    Progress,
    from_json,
    to_json,
)
from service.config import settings
from service.domain import BlockState, Purpose
from service.errors import DatabaseUnavailableError
from service.experiments.model import Design
from service.experiments.seeds import run_seed
from service.store.evidence import save_execution, save_prepared
from service.store.experiments import LIVE, design_of, suite_definition
from service.store.hosts import seen, seen_slot
from service.store.leases import Lease, claim, finish, holds, renew
from service.store.messages import add_message
from service.store.models import Arm, Block, Experiment
from service.store.session import write
from workers.analyse import send_what_was_committed
from workers.runner_process import RunnerProcess

log = structlog.get_logger()
T = TypeVar("T")

SLOT_BUSY_RETRIES = 20
SLOT_BUSY_PAUSE_S = 1.0
DATABASE_PAUSE_S = 1.0
DATABASE_PATIENCE_S = 120.0


class LeaseLostError(Exception):
    """Somebody else has the block now, or the experiment ended: stop at once and write nothing."""


class SlotBusyError(Exception):
    """Another runner still holds the slot."""


@dataclass(slots=True)
class _Attempt:
    """What this worker knows while it runs one attempt."""

    lease: Lease
    experiment_id: int
    host_id: int | None = None
    running_arm: int | None = None
    progress: dict[str, Any] | None = None
    prepared: list[PreparedArm] = field(default_factory=list)
    finished: int = 0
    lost_reason: str | None = None
    is_done: bool = False


def execute(block_id: int) -> None:
    """Run the block if it still waits for a worker."""
    current = settings()
    owner = f"{platform.node()}:{os.getpid()}:{current.slot}"
    with write() as session:
        block = session.get(Block, block_id)
        experiment = session.get(Experiment, block.experiment_id) if block else None
        if block is None or experiment is None or experiment.state not in LIVE or experiment.cancel_reason is not None:
            return
        lease = claim(session, block_id, owner, current.lease_s)
        if lease is None:
            return
        session.refresh(block)
        job = make_job(session, experiment, block)
    attempt = _Attempt(lease, experiment.id)
    log.info("block_started", experiment=experiment.id, index=block.index, attempt=lease.attempt)
    try:
        _run(attempt, job)
    except LeaseLostError:
        log.warning("lease_lost", experiment=experiment.id, index=block.index)
        return
    _persist(lambda session: _end(session, attempt))
    send_what_was_committed()


def _run(attempt: _Attempt, job: PrepareJob | BlockJob) -> None:
    log_path = settings().home / "logs" / f"runner-{settings().slot}.log"
    for _ in range(SLOT_BUSY_RETRIES):
        try:
            with RunnerProcess(job, log_path) as runner:
                _read(attempt, runner)
                code = runner.end()
            if not attempt.is_done and attempt.lost_reason is None:
                attempt.lost_reason = f"the runner ended with exit code {code} before it was done; see {log_path}"
            return
        except SlotBusyError:
            _heartbeat(attempt)
            time.sleep(SLOT_BUSY_PAUSE_S)
        except MalformedMessageError as error:
            attempt.lost_reason = str(error)
            return
    attempt.lost_reason = f"the slot {settings().slot_dir} stayed locked by another runner"


def _read(attempt: _Attempt, runner: RunnerProcess) -> None:
    tick_s = min(1.0, settings().lease_s / 3)
    last = 0.0
    for message in runner.messages(tick_s):
        if message is not None:
            _take(attempt, message)
        if time.monotonic() - last >= tick_s:
            _heartbeat(attempt)
            last = time.monotonic()


def _take(attempt: _Attempt, message: Any) -> None:
    match message:
        case Hello():
            _persist(lambda session: _note_host(session, attempt, message))
        case Progress():
            attempt.running_arm = message.arm
            attempt.progress = to_json(message)
        case PreparedArm():
            attempt.prepared.append(message)
        case ExecutionReport() if message.status is ExecutionStatus.LOST:
            attempt.running_arm = message.arm
            attempt.lost_reason = message.lost_reason or "lost"
        case ExecutionReport():
            _persist(lambda session: _store(session, attempt, message))
            attempt.finished += 1
        case Failure() if message.code == "slot_busy":
            raise SlotBusyError
        case Failure():
            attempt.lost_reason = f"{message.code}: {message.message} {message.way_out}".strip()
        case Done():
            attempt.is_done = True


def _heartbeat(attempt: _Attempt) -> None:
    """Renew the lease; LeaseLostError when it is gone or the experiment was cancelled or concluded meanwhile."""

    def beat(session: Session) -> bool:
        query = select(Experiment.state, Experiment.cancel_reason).where(Experiment.id == attempt.experiment_id)
        state, cancel_reason = session.execute(query).one()
        if state not in LIVE or cancel_reason is not None:
            finish(session, attempt.lease, BlockState.LOST, reason="the experiment ended")
            return False
        return renew(session, attempt.lease, settings().lease_s, attempt.progress)

    if not _persist(beat):
        raise LeaseLostError


def _note_host(session: Session, attempt: _Attempt, hello: Hello) -> None:
    now = datetime.now(UTC)
    host = seen(session, hello.host, hello.boot_id, {"python": hello.python}, now)
    seen_slot(session, host, settings().slot, str(settings().slot_dir), now)
    attempt.host_id = host.id
    block = session.get_one(Block, attempt.lease.block_id)
    if holds(session, attempt.lease):
        block.host_id = host.id


def _store(session: Session, attempt: _Attempt, report: ExecutionReport) -> None:
    if not holds(session, attempt.lease):
        raise LeaseLostError
    experiment = session.get_one(Experiment, attempt.experiment_id)
    block = session.get_one(Block, attempt.lease.block_id)
    save_execution(session, experiment, block, report, attempt.lease.fence, attempt.host_id)


def _end(session: Session, attempt: _Attempt) -> None:
    if not holds(session, attempt.lease):
        return
    is_whole = attempt.is_done and attempt.lost_reason is None
    if is_whole:
        experiment = session.get_one(Experiment, attempt.experiment_id)
        for prepared in attempt.prepared:
            save_prepared(session, experiment, prepared)
        finish(session, attempt.lease, BlockState.COMPLETE)
    else:
        finish(session, attempt.lease, BlockState.LOST, lost_arm=attempt.running_arm, reason=attempt.lost_reason)
        log.warning("block_lost", block=attempt.lease.block_id, reason=attempt.lost_reason)
    add_message(session, "analyse", attempt.experiment_id, datetime.now(UTC))


def _persist(work: Callable[[Session], T]) -> T:
    """Return what `work` returns in a committed transaction, waiting for a database that is away for a while."""
    deadline = time.monotonic() + DATABASE_PATIENCE_S
    while True:
        try:
            with write() as session:
                return work(session)
        except DatabaseUnavailableError as error:
            if time.monotonic() > deadline:
                raise
            log.warning("database_away", detail=str(error))
            time.sleep(DATABASE_PAUSE_S)


def make_job(session: Session, experiment: Experiment, block: Block) -> PrepareJob | BlockJob:
    """Return the runner's job for a block; the arms' fixed test lists come from the preparation."""
    design = design_of(experiment)
    definition = suite_definition(session, experiment)
    arms = tuple(ArmJob(arm.index, arm.name, arm.commit, arm.treatments) for arm in design.arms)
    common: dict[str, Any] = {
        "source": experiment.source,
        "slot_dir": str(settings().slot_dir),
        "suite": definition,
        "arms": arms,
        "victim": design.victim,
        "tests_mode": design.tests_mode,
    }
    if block.purpose == Purpose.PREPARE.value:
        return PrepareJob(**common)
    tests = _tests_by_arm(session, experiment)
    return BlockJob(
        **common,
        experiment=str(experiment.id),
        block=block.index,
        attempt=block.attempt,
        executions=tuple(execution_job(design, block.index, arm, tests[arm]) for arm in block.arms),
        cache_state=design.cache_state,
    )


def execution_job(design: Design, block_index: int, arm: int, tests: tuple[str, ...]) -> ExecutionJob:
    """Return the job of one execution with its seed."""
    return ExecutionJob(arm, tests, run_seed(design.seed, block_index, arm))


def _tests_by_arm(session: Session, experiment: Experiment) -> dict[int, tuple[str, ...]]:
    arms = session.scalars(select(Arm).where(Arm.experiment_id == experiment.id)).all()
    return {arm.index: from_json(PreparedArm, arm.prepared).tests for arm in arms if arm.prepared is not None}
