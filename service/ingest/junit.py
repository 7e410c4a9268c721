"""JUnit XML, in the dialects of the real files that the tests hold it to, read in one streaming pass."""

from __future__ import annotations

from dataclasses import dataclass, field

from service.ingest.cases import Case, Collector, Part, Suite
from service.ingest.document import Document, position
from service.ingest.durations import seconds, timestamp
from service.ingest.events import Numbers
from service.ingest.report import FileStatus, RejectedReportError, ReportFile, Timestamp
from service.ingest.xml_stream import Stream, read_xml

ROOTS = frozenset({"testsuites", "testsuite", "testcase"})

# Reports that people upload by mistake beside the right ones, by their root.
_OTHER_FORMATS = {
    "robot": "Robot Framework's own format: pass --xunit FILE to robot",
    "TestRun": "a Visual Studio trx file: use the JUnit logger of dotnet test",
    "test-run": "NUnit's own format: convert it to JUnit",
    "test-results": "NUnit's own format: convert it to JUnit",
    "assemblies": "xUnit.net's own format: use its JUnit output",
    "failsafe-summary": "failsafe's summary, which names no test: upload TEST-*.xml",
    "html": "a web page",
    "coverage": "a coverage report",
}
_REPORTED = frozenset({"failure", "error"})
_RERUNS = frozenset({"flakyFailure", "flakyError", "rerunFailure", "rerunError"})
_OUTPUTS = frozenset({"system-out", "system-err"})
_INSIDE_CASE = _REPORTED | _RERUNS | _OUTPUTS | {"skipped", "stackTrace", "property"}


@dataclass(slots=True)
class _Written:
    """What was read so far."""

    cases: Collector
    suites: list[Suite] = field(default_factory=list)
    root: str | None = None
    root_time: str | None = None
    started: Timestamp | None = None
    numbers: Numbers = field(default_factory=Numbers)


def read_junit(document: Document) -> ReportFile:
    """Return what a JUnit file says; RejectedReportError when nothing of it can be kept.

    A file that ends in the middle keeps the cases before the break and is marked as cut off.
    """
    reader, cut = read_xml(document, lambda stream: _Reader(document, stream))
    written = reader.finish()
    if cut is not None:
        if not written.cases.results:
            raise RejectedReportError(f"not well-formed: {cut.reason}", cut.line, cut.column)
        document.repair(f"cut off: {cut.reason}; what follows is missing", cut.line, cut.column)
    return _report(document, written, is_cut=cut is not None)


def _report(document: Document, written: _Written, *, is_cut: bool) -> ReportFile:
    root = written.root or ""
    if root not in ROOTS:
        if not written.cases.results:
            hint = _OTHER_FORMATS.get(root, "expected <testsuites> or <testsuite>")
            raise RejectedReportError(f"<{root}> is no JUnit report: {hint}", *position(document.data, 0))
        document.repair(f"the root is <{root}>, not <testsuites>", 1, 1)
    is_complete = not is_cut
    for suite in written.suites:
        missing = suite.missing
        if missing and not is_cut:
            is_complete = False
            document.warn(f"suite {suite.path!r} declares {suite.declared} tests and holds {suite.held}", *suite.place)
    cases, is_comma_decimal = written.cases.finish([written.root_time] if written.root_time else [])
    return ReportFile(
        name=document.name,
        format="junit",
        status=FileStatus.REPAIRED if document.is_repaired else FileStatus.PARSED,
        digest=document.digest,
        size_bytes=document.size_bytes,
        cases=tuple(cases),
        problems=document.notes,
        is_complete=is_complete,
        is_cut=is_cut,
        started=written.started,
        duration_s=seconds(written.root_time, is_comma_decimal=is_comma_decimal),
        counters=written.numbers.counters,
        measurements=tuple(written.numbers.measurements),
    )


class _Reader:
    """The handlers of one pass."""

    def __init__(self, document: Document, stream: Stream) -> None:
        self.document = document
        self.stream = stream
        self.written = _Written(Collector(document))
        self.path: list[str] = []
        self._open: list[Suite] = []
        self._cases: list[Case] = []
        self._parts: list[Part] = []

    def restart(self) -> None:
        """Take another document of the same file."""
        self.path.clear()
        self._open.clear()
        self._cases.clear()

    def finish(self) -> _Written:
        """Return what was read; a case that the file breaks off in is kept when it had already failed."""
        for case in self._cases:
            if case.reported:
                self.written.cases.add(case)
        return self.written

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Take the start of an element."""
        if ":" in name:
            name = name.rpartition(":")[2]
        path = self.path
        path.append(name)
        if name == "testcase":
            if not self._open:
                self._open_suite({}, "testcase")
            suite = self._open[-1]
            suite.held += 1
            self._cases.append(Case(suite, attributes))
        elif self._cases or self._parts:
            if name in _INSIDE_CASE:
                self._open_part(name, attributes)
        elif name == "testsuite" or name == "testsuites" or self.written.root is None:
            self._open_suite(attributes, name)
        elif name in _OUTPUTS or name == "property" or (name in _REPORTED and path[-2] == "testsuite"):
            self._open_part(name, attributes)
        if len(path) > 20:
            self.stream.check_depth(len(path))

    def end(self, _name: str) -> None:
        """Take the end of an element."""
        name = self.path.pop()
        if name == "testcase":
            self.written.cases.add(self._cases.pop())
        elif self._parts:
            if self._parts[-1].name == name:
                self._close_part()
        elif name == "testsuite" and self._open:
            suite = self._open.pop()
            if self._open:
                self._open[-1].held += suite.held
                self._open[-1].reruns += suite.reruns

    def _open_suite(self, attributes: dict[str, str], name: str = "testsuite") -> None:
        written = self.written
        if written.root is None:
            written.root = name
            written.root_time = attributes.get("time")
        if written.started is None and "timestamp" in attributes:
            written.started = timestamp(attributes["timestamp"])
        suite = Suite.of(attributes, self._open[-1] if self._open else None, is_container=name != "testsuite")
        suite.place = self.stream.place()
        self._open.append(suite)
        written.suites.append(suite)

    def _open_part(self, name: str, attributes: dict[str, str]) -> None:
        part = Part(name, attributes)
        self._parts.append(part)
        self.stream.capture(part.texts.append)

    def _close_part(self) -> None:
        part = self._parts.pop()
        self.stream.capture(self._parts[-1].texts.append if self._parts else None)
        if self._parts:
            self._parts[-1].parts.append(part)
        elif self._cases:
            case = self._cases[-1]
            case.add(part)
            if part.name in _RERUNS:
                case.suite.reruns += 1
        elif part.name == "property":
            self.written.numbers.add_property(part, self.document)
        elif part.name in _OUTPUTS:
            self.written.numbers.add_output(part.text, self.document)
        elif part.name in _REPORTED and self._open:
            # A suite that failed outside its tests: without a case of its own it would read as green.
            case = Case(self._open[-1], {"name": "", "classname": self._open[-1].path})
            case.add(part)
            self.written.cases.add(case)
