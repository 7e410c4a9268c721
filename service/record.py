"""An upload of CI reports into the store: one run, every readable file kept, none read as green when it is not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from service.domain import RunStatus
from service.ingest.payload import RunMetadata
from service.ingest.report import CaseResult, FileStatus, ReportFile
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


def record_upload(metadata: RunMetadata, files: Sequence[ReportFile]) -> Recorded:
    """Store one run. Uploading the same files for the same run, attempt, job and variant again changes nothing."""
    now = datetime.now(UTC)
    described = tuple(_describe(file) for file in files)
    results = _results(files)
    record = RunRecord(
        key=_key(metadata, files),
        origin="ci",
        status=_status(files, metadata),
        results=results,
        counters={name: value for file in files for name, value in file.counters.items()},
        measurements=[item for file in files for item in file.measurements],
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
        return Recorded(run.id, is_new, RunStatus(run.status), len(results), described)


def _status(files: Sequence[ReportFile], metadata: RunMetadata) -> RunStatus:
    readable = [file for file in files if file.status is not FileStatus.REJECTED]
    if not readable:
        return RunStatus.LOST
    whole = len(readable) == len(files) and all(file.is_complete for file in readable)
    failed_without_a_failure = bool(metadata.has_failed) and not any(file.failing for file in readable)
    return RunStatus.COMPLETE if whole and not failed_without_a_failure else RunStatus.PARTIAL


def _results(files: Sequence[ReportFile]) -> list[ResultRecord]:
    """Return the results of all files; a test that several files hold gets its later rows as further attempts."""
    seen: dict[Any, int] = {}
    records: list[ResultRecord] = []
    for file in files:
        for case in file.cases:
            attempt = max(case.attempt, seen.get(case.identity, 0) + 1)
            seen[case.identity] = attempt
            records.append(_result(case, attempt, len(records)))
    return records


def _result(case: CaseResult, attempt: int, position: int) -> ResultRecord:
    return ResultRecord(
        identity=case.identity,
        outcome=case.outcome.value,
        attempt=attempt,
        position=position,
        duration_s=case.duration_s,
        signature=case.signature or None,
        failure_type=case.failure_type,
        message=case.message,
        output=case.output or case.detail,
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


def _key(metadata: RunMetadata, files: Sequence[ReportFile]) -> str:
    parts = [
        metadata.project,
        metadata.sha,
        metadata.run_id,
        metadata.attempt,
        metadata.job,
        metadata.variant,
        metadata.suite,
    ]
    digests = sorted(file.digest for file in files)
    return hashlib.sha256(json.dumps([parts, digests], default=str).encode()).hexdigest()
