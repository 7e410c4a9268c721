"""Several reports of one ctest run in one upload, joined test by test."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from gpu_runner.protocol import Outcome
from service.domain import FAILING
from service.ingest.ctest import XML
from service.ingest.ctest_text import CONSOLE, LOG
from service.ingest.identity import TestIdentity
from service.ingest.report import CaseResult, Problem, ReportFile


def merge_ctest(files: Sequence[ReportFile], problems: list[Problem]) -> list[Sequence[CaseResult]]:
    """Return the cases of the files, one group a file, with several reports of one ctest run joined into one group.

    Of each test the report with the most attempts counts, then the one that knows a reason; the others lend it what
    it lacks.
    """
    own = [file for file in files if file.format in {XML, LOG, CONSOLE}]
    if not own:
        return [file.cases for file in files]
    names = {case.identity for file in own for case in file.cases}
    joined = [file for file in files if file in own or _is_of_ctest(file, names)]
    if len(joined) > 1:
        problems.append(
            Problem(f"{', '.join(file.name for file in joined)} report the same ctest run; they are joined")
        )
    # The console tells most about outcomes, the log least.
    ranks = {CONSOLE: 0, XML: 1, "junit": 2, LOG: 3}
    by_test: dict[TestIdentity, list[tuple[int, list[CaseResult]]]] = {}
    for file in joined:
        within: dict[TestIdentity, list[CaseResult]] = {}
        for case in file.cases:
            within.setdefault(case.identity, []).append(case)
        for identity, attempts in within.items():
            by_test.setdefault(identity, []).append((ranks[file.format], attempts))
    cases: list[CaseResult] = []
    for reports in by_test.values():
        reports.sort(key=lambda report: (-len(report[1]), report[0]))
        attempts = list(reports[0][1])
        for _, others in reports[1:]:
            attempts[-1] = _completed(attempts[-1], others[-1])
        cases.extend(attempts)
    rest: list[Sequence[CaseResult]] = [file.cases for file in files if file not in joined]
    return [cases, *rest]


def _is_of_ctest(file: ReportFile, names: AbstractSet[TestIdentity]) -> bool:
    """Return whether a JUnit file is that of the ctest run with these tests: bare names, some of them the same."""
    identities = {case.identity for case in file.cases}
    is_bare = all(not (i.suite or i.file or i.classname or i.variant) for i in identities)
    return is_bare and not identities.isdisjoint(names)


def _completed(case: CaseResult, other: CaseResult) -> CaseResult:
    """Return the case with what only the other report of the same attempt knows."""
    is_vaguer = case.outcome in {Outcome.FAILED, Outcome.UNKNOWN} and other.outcome in FAILING | {Outcome.NOT_RUN}
    return replace(
        case,
        outcome=other.outcome if is_vaguer else case.outcome,
        duration_s=other.duration_s if not case.duration_s else case.duration_s,
        message=case.message or other.message,
        failure_type=case.failure_type or other.failure_type,
        detail=case.detail or other.detail,
        output=max(case.output or "", other.output or "", key=len) or None,
        counters=case.counters or other.counters,
        measurements=case.measurements or other.measurements,
    )
