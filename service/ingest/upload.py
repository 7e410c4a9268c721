"""The files of one upload as one run: nothing counted twice, nothing overwritten, no loss that reads as green."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpu_runner.protocol import Measurement, Outcome
from service.domain import FAILING, RunStatus
from service.ingest import read_report
from service.ingest.ctest_merge import merge_ctest
from service.ingest.identity import TestIdentity
from service.ingest.payload import Conclusion, RunMetadata, RunPayload
from service.ingest.report import CaseResult, FileStatus, Problem, Repetition, ReportFile


@dataclass(frozen=True, slots=True)
class RunReport:
    """A run as reported. No two of its cases have the same identity and attempt; positions count over all files.

    `problems` concern the upload as a whole; those of a file stand with the file. `status` is `lost` when there is no
    result at all and nothing says that this is right, `partial` when some results are known to be missing.
    """

    metadata: RunMetadata
    status: RunStatus
    files: tuple[ReportFile, ...]
    cases: tuple[CaseResult, ...]
    problems: tuple[Problem, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    measurements: tuple[Measurement, ...] = ()

    @property
    def outcomes(self) -> Counter[Outcome]:
        """Return how many cases came to each outcome."""
        return Counter(case.outcome for case in self.cases)


def read_run(payload: RunPayload) -> RunReport:
    """Return the run of an upload. Every file is read, however bad the others are; nothing here raises."""
    problems: list[Problem] = []
    files: list[ReportFile] = []
    names_by_digest: dict[str, str] = {}
    for uploaded in payload.files:
        file = read_report(uploaded.name, uploaded.content)
        same = names_by_digest.setdefault(file.digest, file.name)
        if same is not file.name:
            problems.append(Problem(f"{file.name} is the same file as {same}; it is counted once"))
            continue
        files.append(file)
    cases = _joined(merge_ctest(files, problems), problems)
    cases = [
        case if case.position == position else replace(case, position=position) for position, case in enumerate(cases)
    ]
    status = _status(payload.metadata, files, cases, problems)
    counters: Counter[str] = Counter()
    for file in files:
        counters.update(file.counters)
    return RunReport(
        metadata=payload.metadata,
        status=status,
        files=tuple(files),
        cases=tuple(cases),
        problems=tuple(problems),
        counters=dict(counters),
        measurements=tuple(measurement for file in files for measurement in file.measurements),
    )


def _joined(groups: Iterable[Sequence[CaseResult]], problems: list[Problem]) -> list[CaseResult]:
    """Return the cases of all files: a suite that was uploaded twice once, other repetitions as further attempts."""
    joined: list[CaseResult] = []
    known: dict[TestIdentity, list[CaseResult]] = {}
    doubles = repeats = 0
    for group in groups:
        shared = [case for case in group if case.identity in known]
        is_double = any(case.duration_s for case in shared) and all(
            any(_is_same(case, other) for other in known[case.identity]) for case in shared
        )
        attempts = {identity: len(results) for identity, results in known.items()} if shared else {}
        for case in group:
            if case.identity in attempts:
                if is_double:
                    doubles += 1
                    continue
                repeats += 1
                case = replace(case, attempt=case.attempt + attempts[case.identity], repetition=Repetition.REPEAT)
            joined.append(case)
            known.setdefault(case.identity, []).append(case)
    if doubles:
        problems.append(Problem(f"{doubles} result(s) stand in two files; they are counted once"))
    if repeats:
        problems.append(
            Problem(f"{repeats} result(s) repeat a test of another file; give each leg of a matrix its own --variant")
        )
    return joined


def _is_same(one: CaseResult, other: CaseResult) -> bool:
    return one.outcome is other.outcome and one.duration_s == other.duration_s and one.message == other.message


def _status(
    metadata: RunMetadata, files: Sequence[ReportFile], cases: Sequence[CaseResult], problems: list[Problem]
) -> RunStatus:
    """Return how much of the run is known; no report beside a job that did not succeed is a loss, never a pass."""
    is_whole = all(file.is_complete and file.status is not FileStatus.REJECTED for file in files)
    has_failed = metadata.has_failed
    if not cases:
        if files and is_whole and not has_failed:
            problems.append(Problem("the reports hold no test"))
            return RunStatus.COMPLETE
        problems.append(Problem("no result could be read: the run is lost, which says nothing about its tests"))
        return RunStatus.LOST
    if not is_whole or metadata.conclusion is Conclusion.CANCELLED:
        return RunStatus.PARTIAL
    if has_failed and not any(case.outcome in FAILING or case.outcome is Outcome.NOT_RUN for case in cases):
        end = f"exit code {metadata.exit_code}" if metadata.exit_code else f"conclusion {metadata.conclusion}"
        problems.append(Problem(f"the job failed ({end}) though no test did: something is not in the reports"))
        return RunStatus.PARTIAL
    return RunStatus.COMPLETE
