"""Evidence that travels: bundles that replay, plans that are run elsewhere, evidence that is imported once."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from gpu_runner.protocol import (
    ArmJob,
    BlockJob,
    Done,
    EvidenceHeader,
    ExecutionJob,
    ExecutionReport,
    ExecutionStatus,
    Failure,
    MalformedMessageError,
    PlanHeader,
    PreparedArm,
    PrepareJob,
    from_json,
    plan_digest,
    read_line,
    to_json,
    write_line,
)
from service.domain import BlockState, ExperimentState, Purpose
from service.errors import ConflictError, InvalidValueError
from service.experiments.ab import PREPARE_INDEX, PROBES_MAX, block_order
from service.experiments.model import BlockPlan, Design, Evidence, Finding
from service.experiments.seeds import run_seed
from service.store.evidence import executions_of, latest_finding, load_evidence, save_execution, save_prepared
from service.store.experiments import advance, blocks_of, design_of, get, insert_block, suite_definition
from service.store.hosts import seen
from service.store.leases import end_attempt
from service.store.models import Execution, Experiment, Result, Run, Test
from service.store.runs import read_output
from service.store.session import read, write

BUNDLE_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Bundle:
    """What `replay` needs: the question, all evidence, and the finding that was reached."""

    format: int
    kind: str
    design: Design
    evidence: Evidence
    finding: Finding | None
    suite: dict[str, Any]
    commands: tuple[str, ...]


def write_bundle(experiment_id: int, path: Path) -> None:
    """Write bundle.json, commands.txt and one log per execution into a zip file."""
    with read() as session:
        experiment = get(session, experiment_id)
        content = Bundle(
            format=BUNDLE_FORMAT,
            kind=experiment.kind,
            design=from_json(Design, experiment.design),
            evidence=load_evidence(session, experiment),
            finding=latest_finding(session, experiment_id),
            suite=to_json(suite_definition(session, experiment)),
            commands=_commands(experiment),
        )
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("bundle.json", json.dumps(to_json(content), ensure_ascii=False, indent=1))
            archive.writestr("commands.txt", "\n".join(content.commands) + "\n")
            for execution, block, run in executions_of(session, experiment_id):
                name = f"logs/block{block.index}-attempt{execution.attempt}-arm{execution.arm}.txt"
                archive.writestr(name, "\n".join(_log(session, execution, run)) + "\n")


def read_bundle(path: Path) -> Bundle:
    """Return a bundle's content; InvalidValueError when the file is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            content = json.loads(archive.read("bundle.json"))
        if content.get("format") != BUNDLE_FORMAT:
            raise InvalidValueError("bundle", str(path), f"format {content.get('format')!r}, not {BUNDLE_FORMAT}")
        return from_json(Bundle, content)
    except (OSError, zipfile.BadZipFile, KeyError, json.JSONDecodeError, MalformedMessageError) as error:
        raise InvalidValueError(
            "bundle", str(path), f"not a bundle: {error}", "`likewise bundle N` writes one."
        ) from error


def _commands(experiment: Experiment) -> tuple[str, ...]:
    return (
        f"likewise show {experiment.id}",
        f"likewise replay experiment-{experiment.id}.zip",
        f"git clone {experiment.source}",
    )


def _log(session: Session, execution: Execution, run: Run | None) -> Iterator[str]:
    yield f"LIKEWISE_RUN_SEED={execution.run_seed} exit code {execution.exit_code}"
    if run is None:
        return
    query = select(Result, Test).join(Test, Test.id == Result.test_id).where(Result.run_id == run.id)
    for result, test in session.execute(query.order_by(Result.position, Result.id)):
        yield f"{result.position} {test.node or test.name}: {result.outcome} {result.signature or ''}".rstrip()
        if result.output_digest is not None:
            yield read_output(session, result.output_digest) or ""


def export_plan(experiment_id: int, tree_hash: str, blocks: int | None = None) -> list[str]:
    """Return the lines of the plan: probes when the signature is open, then `blocks` (all) blocks.

    The plan cannot adapt: blocks after the stop are run, kept and not counted. ConflictError when workers of ours
    have begun the experiment, or evidence for it was imported already.
    """
    with write() as session:
        experiment = get(session, experiment_id)
        if experiment.state not in (ExperimentState.DETACHED.value, ExperimentState.QUEUED.value):
            hint = "Enqueue it again with --detached."
            raise ConflictError(f"experiment {experiment_id} is {experiment.state} already", hint)
        design = design_of(experiment)
        wanted = _issued(design, blocks or design.blocks_max)
        arms = tuple(ArmJob(arm.index, arm.name, arm.commit, arm.treatments) for arm in design.arms)
        common: dict[str, Any] = {
            "source": "",
            "slot_dir": "",
            "suite": suite_definition(session, experiment),
            "arms": arms,
            "victim": design.victim,
            "tests_mode": design.tests_mode,
        }
        jobs = tuple(_block_job(common, experiment, design, plan) for plan in wanted)
        header = PlanHeader("", str(experiment.id), tree_hash, PrepareJob(**common))
        digest = plan_digest(header, jobs)
        experiment.plan_digest = digest
        experiment.state = ExperimentState.DETACHED.value
        signed = PlanHeader(digest, header.experiment, tree_hash, header.prepare)
        return [write_line(signed), *(write_line(job) for job in jobs)]


def _issued(design: Design, blocks: int) -> list[BlockPlan]:
    plans = []
    every = tuple(arm.index for arm in design.arms)
    if design.signature is None:
        for number in range(PROBES_MAX):
            index = PREPARE_INDEX - 1 - number
            plans.append(BlockPlan(index, Purpose.PROBE, 1, block_order(design.seed, index, every)))
    plans += [BlockPlan(i, Purpose.COUNT, 1, block_order(design.seed, i, every)) for i in range(blocks)]
    return plans


def _block_job(common: dict[str, Any], experiment: Experiment, design: Design, plan: BlockPlan) -> BlockJob:
    return BlockJob(
        **common,
        experiment=str(experiment.id),
        block=plan.index,
        attempt=plan.attempt,
        executions=tuple(ExecutionJob(arm, (), run_seed(design.seed, plan.index, arm)) for arm in plan.arms),
        cache_state=design.cache_state,
    )


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import took in, and the finding if it decided the experiment."""

    experiment: int
    blocks: int
    executions: int
    finding: Finding | None


def import_evidence(path: Path) -> Imported:
    """Store the evidence of a detached plan in one transaction, once, and judge it.

    InvalidValueError when a line is damaged or the evidence belongs to another plan; ConflictError when it was
    imported before.
    """
    header, prepared, reports = _read_evidence(path)
    now = datetime.now(UTC)
    with write() as session:
        experiment = _experiment_of(session, path, header)
        for arm in prepared:
            save_prepared(session, experiment, arm)
        host = seen(session, header.runner.host, header.runner.boot_id, {"python": header.runner.python}, now)
        prepare = insert_block(session, experiment, BlockPlan(PREPARE_INDEX, Purpose.PREPARE, 1, (0,)))
        end_attempt(prepare, BlockState.COMPLETE, None, None)
        blocks = _save_blocks(session, experiment, reports, host.id)
        finding = advance(session, experiment.id, now)
        executions = sum(report.status is ExecutionStatus.COMPLETE for report in reports)
        return Imported(experiment.id, blocks, executions, finding)


def _experiment_of(session: Session, path: Path, header: EvidenceHeader) -> Experiment:
    query = select(Experiment).where(Experiment.plan_digest == header.plan_digest)
    experiment = session.scalars(query).first()
    if experiment is None:
        hint = "Import it where the plan was exported, and after the last export."
        raise InvalidValueError("evidence", str(path), f"no experiment has the plan {header.plan_digest[:12]}", hint)
    if blocks_of(session, experiment.id):
        raise ConflictError(f"evidence for experiment {experiment.id} was imported already")
    return experiment


def _read_evidence(path: Path) -> tuple[EvidenceHeader, list[PreparedArm], list[ExecutionReport]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        messages = [read_line(line) for line in lines if line.strip()]
    except (OSError, UnicodeDecodeError, MalformedMessageError) as error:
        hint = "Copy the file again, whole."
        raise InvalidValueError("evidence", str(path), f"not readable: {error}", hint) from error
    if not messages or not isinstance(messages[0], EvidenceHeader):
        raise InvalidValueError("evidence", str(path), "it does not begin with an evidence header")
    failures = [message for message in messages if isinstance(message, Failure)]
    if failures:
        raise InvalidValueError("evidence", str(path), f"the batch failed: {failures[0].message}", failures[0].way_out)
    if not isinstance(messages[-1], Done):
        hint = "Finish it: `python -m gpu_runner batch --resume FILE` goes on where it ended."
        raise InvalidValueError("evidence", str(path), "the batch did not run to its end", hint)
    prepared = [message for message in messages if isinstance(message, PreparedArm)]
    return messages[0], prepared, [message for message in messages if isinstance(message, ExecutionReport)]


def _save_blocks(session: Session, experiment: Experiment, reports: Sequence[ExecutionReport], host_id: int) -> int:
    by_block: dict[int, dict[int, list[ExecutionReport]]] = {}
    for report in reports:
        if report.block is None or report.attempt is None:
            raise InvalidValueError("evidence", report.arm, "an execution names no block")
        by_block.setdefault(report.block, {}).setdefault(report.attempt, []).append(report)
    for index, attempts in by_block.items():
        first = next(iter(attempts.values()))
        order = tuple(report.arm for report in sorted(first, key=lambda item: item.position))
        purpose = Purpose.PROBE if index < PREPARE_INDEX else Purpose.COUNT
        block = insert_block(session, experiment, BlockPlan(index, purpose, 1, order))
        for attempt, executions in attempts.items():
            block.attempt = attempt
            lost = next((r for r in executions if r.status is ExecutionStatus.LOST), None)
            for report in executions:
                if report.status is ExecutionStatus.COMPLETE:
                    save_execution(session, experiment, block, report, 0, host_id)
            state = BlockState.LOST if lost else BlockState.COMPLETE
            end_attempt(block, state, lost.arm if lost else None, lost.lost_reason if lost else None)
    session.flush()
    return len(by_block)
