"""An upload of CI reports into the store: one run, every readable file kept, none read as green when it is not."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from service.domain import RunStatus
from service.ingest.payload import RunPayload
from service.ingest.report import CaseResult, ReportFile
from service.ingest.summary import IngestSummary, summarise
from service.ingest.upload import RunReport, read_run
from service.store.catalog import add_commit, add_project, add_suite
from service.store.runs import ResultRecord, RunRecord, record_run
from service.store.session import write


@dataclass(frozen=True, slots=True)
class Recorded:
    """What became of an upload. `is_new` False: it was recorded before and nothing changed."""

    run_id: int
    is_new: bool
    status: RunStatus
    results: int
    files: tuple[dict[str, Any], ...]
    summary: IngestSummary


def record_upload(payload: RunPayload) -> Recorded:
    """Store one run. Uploading the same files for the same run, attempt, job and variant again changes nothing."""
    report = read_run(payload)
    metadata, now = report.metadata, datetime.now(UTC)
    described = tuple(_describe(file) for file in report.files)
    record = RunRecord(
        key=_key(report),
        origin="ci",
        status=report.status,
        results=[_result(case) for case in report.cases],
        counters=report.counters,
        measurements=report.measurements,
        provider_run_id=metadata.run_id,
        attempt=metadata.attempt,
        job=metadata.job,
        variant=metadata.variant,
        branch=metadata.branch or "",
        pull_request=metadata.pull_request,
        exit_code=metadata.exit_code,
        conclusion=metadata.conclusion.value if metadata.conclusion else None,
        files=described,
        started_at=metadata.started_at,
    )
    with write() as session:
        project = add_project(session, metadata.project, None, now)
        suite = add_suite(session, project, metadata.suite or metadata.job or "default")
        commit = add_commit(session, project, metadata.sha, metadata.parents)
        run, is_new = record_run(session, suite, commit, record, now)
        summary = summarise(report, run=str(run.id), is_new=is_new)
        return Recorded(run.id, is_new, RunStatus(run.status), len(report.cases), described, summary)


def _result(case: CaseResult) -> ResultRecord:
    return ResultRecord(
        identity=case.identity,
        outcome=case.outcome.value,
        attempt=case.attempt,
        position=case.position,
        duration_s=case.duration_s,
        signature=case.signature or None,
        failure_type=case.failure_type,
        message=case.message,
        output=case.log,
        counters=case.counters,
        measurements=case.measurements,
    )


def _describe(file: ReportFile) -> dict[str, Any]:
    return {
        "name": file.name,
        "format": file.format,
        "status": file.status.value,
        "digest": file.digest,
        "cases": len(file.cases),
        "failing": file.failing,
        "problems": [str(problem) for problem in file.problems],
    }


def _key(report: RunReport) -> str:
    """Return what makes the run this run; other files of the same job are a further run, the same ones are not."""
    metadata = report.metadata
    parts = [metadata.project, metadata.sha, metadata.run_id, metadata.attempt, metadata.job, metadata.variant]
    digests = sorted(file.digest for file in report.files)
    return hashlib.sha256(json.dumps([*parts, metadata.suite, digests]).encode()).hexdigest()
