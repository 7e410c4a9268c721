"""A whole plan on a box without a network: prepare, then block after block, evidence out as it is made."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpu_runner.failures import RunnerError
from gpu_runner.life import Life
from gpu_runner.loop import Emit, run_job_in
from gpu_runner.protocol import (
    BlockJob,
    Done,
    EvidenceHeader,
    ExecutionReport,
    ExecutionStatus,
    Hello,
    MalformedMessageError,
    PlanHeader,
    PreparedArm,
    Progress,
    plan_digest,
    read_line,
)
from gpu_runner.slot import Slot

ATTEMPTS = 3  # of a block that loses an execution to the infrastructure


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """A detached plan as it was read and held to its digest."""

    header: PlanHeader
    blocks: tuple[BlockJob, ...]


def read_plan(lines: Iterable[bytes]) -> Plan:
    """Return the plan; RunnerError `malformed_plan` when a line is missing, changed or of another kind."""
    messages = [_message(line, "malformed_plan") for line in lines if line.strip()]
    if not messages or not isinstance(messages[0], PlanHeader):
        raise RunnerError("malformed_plan", "the first line is no plan header", "export the plan again")
    header, blocks = messages[0], tuple(message for message in messages[1:] if isinstance(message, BlockJob))
    if len(blocks) != len(messages) - 1:
        raise RunnerError("malformed_plan", "a line after the header is no block", "export the plan again")
    digest = plan_digest(header, blocks)
    if digest != header.digest:
        raise RunnerError(
            "malformed_plan",
            f"the plan was changed: it hashes to {digest}, its header says {header.digest}",
            "export the plan again, and copy the file whole",
        )
    return Plan(header, blocks)


def run_plan(
    lines: Iterable[bytes], source: Path, slot_dir: Path, resume: Path | None, life: Life, emit: Emit, hello: Hello
) -> None:
    """Emit the evidence of a plan: header, prepared arms, executions, `Done`. RunnerError when it cannot go on."""
    plan = read_plan(lines)
    known = _Known() if resume is None else _read_evidence(resume, plan)
    slot = Slot(slot_dir)
    try:
        emit(EvidenceHeader(plan.header.digest, plan.header.experiment, hello))
        prepared = _prepare(plan, source, slot, life, emit)
        for block in plan.blocks:
            if block.block in known.reports:
                for report in known.reports[block.block]:
                    emit(report)
                continue
            executions = tuple(
                item if item.tests else dataclasses.replace(item, tests=prepared[item.arm].tests)
                for item in block.executions
            )
            here = dataclasses.replace(
                block,
                executions=executions,
                source=str(source),
                slot_dir=str(slot.path),
                tree_hash=plan.header.tree_hash,
            )
            _run_block(here, slot, life, emit)
        emit(Done())
    finally:
        slot.close()


def _prepare(plan: Plan, source: Path, slot: Slot, life: Life, emit: Emit) -> dict[int, PreparedArm]:
    prepared: dict[int, PreparedArm] = {}

    def take(message: object) -> None:
        if isinstance(message, PreparedArm):
            prepared[message.arm] = message
            emit(message)
        _tell(message)

    job = dataclasses.replace(
        plan.header.prepare, source=str(source), slot_dir=str(slot.path), tree_hash=plan.header.tree_hash
    )
    run_job_in(slot, job, life, take)
    for arm in prepared.values():
        if arm.error_code is not None:
            raise RunnerError(arm.error_code, f"arm {arm.arm} cannot be prepared: {arm.error}")
    for execution in (execution for block in plan.blocks for execution in block.executions):
        tests = prepared[execution.arm].tests if execution.arm in prepared else ()
        if execution.tests and execution.tests != tests:
            raise RunnerError(
                "plan_differs",
                f"arm {execution.arm} has {len(tests)} tests here, the plan names {len(execution.tests)} or others",
                "export the plan again with the same build, or run it where it builds alike",
            )
    return prepared


def _run_block(block: BlockJob, slot: Slot, life: Life, emit: Emit) -> None:
    for attempt in range(block.attempt, block.attempt + ATTEMPTS):
        reports: list[ExecutionReport] = []

        def take(message: object, reports: list[ExecutionReport] = reports) -> None:
            if isinstance(message, ExecutionReport):
                reports.append(message)
            _tell(message)

        run_job_in(slot, dataclasses.replace(block, attempt=attempt), life, take)
        # A block counts as a whole: its reports are written together, so that evidence never ends inside one.
        for report in reports:
            emit(report)
        if all(report.status is ExecutionStatus.COMPLETE for report in reports):
            return


@dataclasses.dataclass(slots=True)
class _Known:
    reports: dict[int, list[ExecutionReport]] = dataclasses.field(default_factory=dict)


def _read_evidence(path: Path, plan: Plan) -> _Known:
    """Return the blocks that earlier evidence of the same plan holds completely."""
    if not path.is_file():
        raise RunnerError("bad_evidence", f"there is no file {str(path)!r} to resume from", "leave --resume out")
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    messages = [_message(line, "bad_evidence") for line in whole.splitlines() if line.strip()]
    if not messages or not isinstance(messages[0], EvidenceHeader):
        raise RunnerError("bad_evidence", f"{str(path)!r} does not start with an evidence header", "leave --resume out")
    if messages[0].plan_digest != plan.header.digest:
        raise RunnerError(
            "bad_evidence",
            f"{str(path)!r} belongs to the plan {messages[0].plan_digest}, this is {plan.header.digest}",
            "resume with the plan that the evidence was made for",
        )
    known = _Known()
    for message in messages:
        if isinstance(message, ExecutionReport) and message.block is not None:
            known.reports.setdefault(message.block, []).append(message)
    sizes = {block.block: len(block.executions) for block in plan.blocks}
    known.reports = {
        block: reports for block, reports in known.reports.items() if _is_settled(reports, sizes.get(block, 0))
    }
    return known


def _is_settled(reports: list[ExecutionReport], size: int) -> bool:
    """Tell whether a block's last attempt is whole, and either complete or the last that is made."""
    last = [report for report in reports if report.attempt == reports[-1].attempt]
    attempts = len({report.attempt for report in reports})
    is_complete = all(report.status is ExecutionStatus.COMPLETE for report in last)
    return len(last) == size and (is_complete or attempts == ATTEMPTS)


def _message(line: bytes, code: str) -> Any:
    try:
        return read_line(line.decode("utf-8"))
    except (MalformedMessageError, UnicodeDecodeError) as error:
        raise RunnerError(code, str(error), "copy the file again, whole") from None


def _tell(message: object) -> None:
    """Show progress to whoever watches; the evidence does not hold it."""
    if isinstance(message, Progress) and message.done is None:
        where = "" if message.position is None else f", execution {message.position}"
        print(f"arm {message.arm}{where}: {message.phase}", file=sys.stderr)
    elif isinstance(message, ExecutionReport):
        print(f"block {message.block}, arm {message.arm}: {message.status}", file=sys.stderr)
