"""What ctest's Test.xml says, and what its reports have in common.

Each of them tells less than the others somewhere. `--output-junit` has one word for a failure, a crash and a time-out;
the log calls a skipped test passed; only the console and Test.xml tell them apart, and only the console and the log
show the attempts of `--repeat`. So `ctest_merge` joins what one upload holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from gpu_runner.protocol import Outcome
from service.ingest.document import Document
from service.ingest.durations import plain_seconds
from service.ingest.events import Numbers
from service.ingest.identity import TestIdentity, identity_from_ctest
from service.ingest.report import (
    CaseResult,
    FileStatus,
    RejectedReportError,
    Repetition,
    ReportFile,
    Timestamp,
)
from service.ingest.xml_stream import Stream, read_xml

XML = "ctest-xml"
MAX_OUTPUT = 64_000

_SKIPS = ("SKIP_RETURN_CODE", "SKIP_REGULAR_EXPRESSION", "Disabled")


def is_test_xml(document: Document) -> bool:
    """Return whether this is CDash's Test.xml."""
    return document.root == "Site"


def read_test_xml(document: Document) -> ReportFile:
    """Return what Test.xml says; RejectedReportError when it holds no test."""
    reader, cut = read_xml(document, lambda stream: _SiteReader(document, stream))
    if cut is not None:
        if not reader.results:
            raise RejectedReportError(f"not well-formed: {cut.reason}", cut.line, cut.column)
        document.repair(f"cut off: {cut.reason}; what follows is missing", cut.line, cut.column)
    if not reader.has_testing:
        raise RejectedReportError("<Site> without <Testing>: a build, configure or coverage report of CDash", 1, 1)
    missing = reader.listed - len(reader.results)
    if missing > 0 and cut is None:
        document.warn(f"{reader.listed} tests are listed and {len(reader.results)} have a result")
    return ctest_file(
        document, XML, reader.results, is_cut=cut is not None, is_complete=missing <= 0, at=reader.started
    )


def xml_outcome(status: str, completion: str, exit_code: str) -> tuple[Outcome, str | None]:
    """Return the outcome and the reason from Test.xml's status, completion status and exit code.

    >>> xml_outcome("failed", "Completed", "SEGFAULT"), xml_outcome("notrun", "SKIP_RETURN_CODE=77", "")[0]
    ((<Outcome.CRASHED: 'crashed'>, 'SEGFAULT'), <Outcome.SKIPPED: 'skipped'>)
    """
    if status == "passed":
        return Outcome.PASSED, None
    if status == "notrun":
        return (Outcome.SKIPPED if completion.startswith(_SKIPS) else Outcome.NOT_RUN), completion or None
    if exit_code == "Timeout" or completion == "Timeout":
        return Outcome.TIMED_OUT, "Timeout"
    if exit_code in {"", "Failed", "Completed"}:
        return Outcome.FAILED, None
    return Outcome.CRASHED, exit_code


@dataclass(slots=True)
class _SiteReader:
    """The handlers for Test.xml."""

    document: Document
    stream: Stream
    path: list[str] = field(default_factory=list)
    results: list[CaseResult] = field(default_factory=list)
    has_testing: bool = False
    listed: int = 0
    started: str = ""
    _status: str = ""
    _texts: list[str] = field(default_factory=list)
    _measurement: str = ""
    _values: dict[str, str] = field(default_factory=dict)

    def restart(self) -> None:
        """Take another document of the same file."""
        self.path.clear()

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Take the start of an element."""
        self.path.append(name)
        self.stream.check_depth(len(self.path))
        if name == "Testing":
            self.has_testing = True
        elif name == "Test" and "Status" in attributes:
            self._status = attributes["Status"]
            self._values = {}
        elif name in {"NamedMeasurement", "Measurement"}:
            self._measurement = attributes.get("name", "Output")
        elif name in {"Name", "Value", "StartTestTime"}:
            self._texts = []
            self.stream.capture(self._texts.append)

    def end(self, name: str) -> None:
        """Take the end of an element."""
        self.path.pop()
        text = "".join(self._texts)
        if name in {"Name", "Value", "StartTestTime"}:
            self.stream.capture(None)
        if name == "Name" and self._status:
            self._values["Name"] = text
        elif name == "Value":
            self._values[self._measurement] = text
        elif name == "StartTestTime":
            self.started = text
        elif name == "Test" and self.path[-1:] == ["TestList"]:
            self.listed += 1
        elif name == "Test" and self._status:
            self._finish()

    def _finish(self) -> None:
        values = self._values
        exit_code = values.get("Exit Code", "")
        outcome, reason = xml_outcome(self._status, values.get("Completion Status", ""), exit_code)
        if outcome is Outcome.FAILED:
            value = values.get("Exit Value", "")
            reason = values.get("Fail Reason") or (f"exit code {value}" if value not in {"", "0"} else None)
        add_result(
            self.document,
            self.results,
            values.get("Name", ""),
            outcome,
            plain_seconds(values.get("Execution Time")),
            reason,
            values.get("Output", ""),
        )
        self._status = ""


def add_result(
    document: Document,
    results: list[CaseResult],
    name: str,
    outcome: Outcome,
    duration_s: float | None,
    reason: str | None,
    output: str,
) -> None:
    """Append a result; a name that occurs again is a further attempt of `--repeat`."""
    numbers = Numbers()
    numbers.add_output(output, document)
    results.append(
        CaseResult(
            identity_from_ctest(name),
            outcome,
            len(results),
            duration_s=None if outcome in {Outcome.NOT_RUN, Outcome.SKIPPED} and not duration_s else duration_s,
            message=reason,
            output=output[-MAX_OUTPUT:] or None,
            counters=numbers.counters,
            measurements=tuple(numbers.measurements),
        )
    )


def ctest_file(
    document: Document,
    kind: str,
    results: Sequence[CaseResult],
    *,
    is_cut: bool,
    is_complete: bool,
    at: str = "",
) -> ReportFile:
    """Return the file of these results, attempts numbered: ctest's names are unique, only retries repeat one."""
    counts: dict[TestIdentity, int] = {}
    numbered = []
    for result in results:
        counts[result.identity] = counts.get(result.identity, 0) + 1
    seen: dict[TestIdentity, int] = {}
    for result in results:
        seen[result.identity] = attempt = seen.get(result.identity, 0) + 1
        kind_of = Repetition.RETRY if counts[result.identity] > 1 else Repetition.SINGLE
        numbered.append(replace(result, attempt=attempt, repetition=kind_of))
    is_time = at.isascii() and at.isdigit() and len(at) < 12
    started = Timestamp(at, datetime.fromtimestamp(int(at), UTC), is_zone_known=True) if is_time else None
    return ReportFile(
        name=document.name,
        format=kind,
        status=FileStatus.REPAIRED if document.is_repaired else FileStatus.PARSED,
        digest=document.digest,
        size_bytes=document.size_bytes,
        cases=tuple(numbered),
        problems=document.notes,
        is_complete=is_complete and not is_cut,
        is_cut=is_cut,
        started=started,
    )
