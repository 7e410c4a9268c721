"""Runs and their results: recorded once by their key, in bulk, with compressed output kept once by its digest."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from gpu_runner.protocol import Measurement
from service.domain import RunStatus
from service.ingest.identity import TestIdentity
from service.store.catalog import CHUNK, add_tests
from service.store.models import Commit, CounterRow, MeasurementRow, Output, Result, Run, Suite


@dataclass(frozen=True, slots=True)
class ResultRecord:
    """One attempt of one test as it is stored. `node`: the framework's own id, when a runner ran it."""

    identity: TestIdentity
    outcome: str
    attempt: int = 1
    position: int | None = None
    duration_s: float | None = None
    signature: str | None = None
    failure_type: str | None = None
    message: str | None = None
    output: str | None = None
    node: str | None = None
    counters: dict[str, int] = field(default_factory=dict)
    measurements: Sequence[Measurement] = ()


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as it is stored; `key` is what makes recording it twice harmless."""

    key: str
    origin: str
    status: RunStatus
    results: Sequence[ResultRecord]
    counters: dict[str, int] = field(default_factory=dict)
    measurements: Sequence[Measurement] = ()
    provider_run_id: str = ""
    attempt: int = 1
    job: str = ""
    variant: str = ""
    branch: str = ""
    pull_request: int | None = None
    exit_code: int | None = None
    conclusion: str | None = None
    files: Sequence[dict[str, Any]] = ()
    started_at: datetime | None = None
    ended_at: datetime | None = None


def find_run(session: Session, key: str) -> Run | None:
    """Return the run recorded under this key."""
    return session.scalar(select(Run).where(Run.key == key))


def record_run(session: Session, suite: Suite, commit: Commit, record: RunRecord, now: datetime) -> tuple[Run, bool]:
    """Return the run and whether it is new; a known key changes nothing."""
    known = find_run(session, record.key)
    if known is not None:
        return known, False
    run = Run(
        key=record.key,
        suite_id=suite.id,
        commit_id=commit.id,
        origin=record.origin,
        status=record.status.value,
        provider_run_id=record.provider_run_id,
        attempt=record.attempt,
        job=record.job,
        variant=record.variant,
        branch=record.branch,
        pull_request=record.pull_request,
        exit_code=record.exit_code,
        conclusion=record.conclusion,
        files=list(record.files),
        started_at=record.started_at,
        ended_at=record.ended_at,
        recorded_at=now,
    )
    session.add(run)
    session.flush()
    _record_results(session, suite, run, record)
    return run, True


def _record_results(session: Session, suite: Suite, run: Run, record: RunRecord) -> None:
    nodes: dict[TestIdentity, str | None] = {}
    for result in record.results:
        nodes.setdefault(result.identity, result.node)
    test_ids = add_tests(session, suite, nodes)
    digests = _store_outputs(session, (r.output for r in record.results if r.output))
    rows = [
        {
            "run_id": run.id,
            "test_id": test_ids[result.identity],
            "attempt": result.attempt,
            "position": result.position,
            "outcome": result.outcome,
            "duration_s": result.duration_s,
            "signature": result.signature,
            "failure_type": result.failure_type,
            "message": result.message,
            "output_digest": digests.get(result.output or ""),
        }
        for result in record.results
    ]
    for start in range(0, len(rows), CHUNK):
        session.execute(insert(Result), rows[start : start + CHUNK])
    _record_numbers(session, run, record, test_ids)


def _record_numbers(session: Session, run: Run, record: RunRecord, test_ids: dict[TestIdentity, int]) -> None:
    wants_ids = any(result.counters or result.measurements for result in record.results)
    result_ids: dict[tuple[int, int], int] = {}
    if wants_ids:
        query = select(Result.test_id, Result.attempt, Result.id).where(Result.run_id == run.id)
        result_ids = {(test, attempt): row for test, attempt, row in session.execute(query)}
    counters = [{"run_id": run.id, "result_id": None, "name": n, "value": v} for n, v in record.counters.items()]
    numbers = [_measurement(run, None, item) for item in record.measurements]
    for result in record.results:
        row = result_ids.get((test_ids[result.identity], result.attempt))
        counters += [{"run_id": run.id, "result_id": row, "name": n, "value": v} for n, v in result.counters.items()]
        numbers += [_measurement(run, row, item) for item in result.measurements]
    if counters:
        session.execute(insert(CounterRow), counters)
    if numbers:
        session.execute(insert(MeasurementRow), numbers)


def _measurement(run: Run, result_id: int | None, item: Measurement) -> dict[str, Any]:
    return {
        "run_id": run.id,
        "result_id": result_id,
        "name": item.name,
        "sample": item.sample,
        "value": item.value,
    }


def _store_outputs(session: Session, texts: Iterable[str]) -> dict[str, str]:
    """Return the digest of each text, each stored once."""
    digests = {text: hashlib.sha256(text.encode("utf-8", "replace")).hexdigest() for text in texts}
    by_digest = {digest: text for text, digest in digests.items()}
    known: set[str] = set()
    wanted = list(by_digest)
    for start in range(0, len(wanted), CHUNK):
        query = select(Output.digest).where(Output.digest.in_(wanted[start : start + CHUNK]))
        known |= set(session.scalars(query))
    rows = [
        {"digest": d, "content": zlib.compress(t.encode("utf-8", "replace"), 6), "size_bytes": len(t)}
        for d, t in by_digest.items()
        if d not in known
    ]
    if rows:
        session.execute(insert(Output), rows)
    return digests


def read_output(session: Session, digest: str) -> str | None:
    """Return a stored output."""
    row = session.get(Output, digest)
    return zlib.decompress(row.content).decode("utf-8", "replace") if row else None
