"""JUnit XML, in every dialect that the corpus of real files holds, read in one streaming pass of expat.

expat alone is used because a document type, and with it every entity, is refused by one handler before it is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.parsers import expat

from service.ingest.cases import Case, Part, Suite, case_results
from service.ingest.document import Document, blank, position
from service.ingest.durations import comma_is_decimal, seconds, timestamp
from service.ingest.events import Numbers
from service.ingest.repair import Repairer, refuse_declarations
from service.ingest.report import FileStatus, RejectedReportError, ReportFile, Timestamp

MAX_DEPTH = 100
MAX_CASES = 1_000_000
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
    """What was read so far: the suites that are open, the case, and the parts of it that are open."""

    cases: list[Case] = field(default_factory=list)
    suites: list[Suite] = field(default_factory=list)
    root: str | None = None
    root_time: str | None = None
    started: Timestamp | None = None
    numbers: Numbers = field(default_factory=Numbers)


def read_junit(document: Document) -> ReportFile:
    """Return what a JUnit file says; RejectedReportError when nothing of it can be kept.

    A file that ends in the middle keeps the cases before the break and is marked as cut off.
    """
    repairer = Repairer(document)
    data = document.data
    cut: expat.ExpatError | None = None
    offset = 0
    while True:
        reader = _Reader(document)
        try:
            reader.read(data)
            break
        except expat.ExpatError as error:
            offset = reader.error_offset
            changed = repairer.repaired(data, is_root_seen=reader.written.root is not None)
            if changed is None:
                cut = error
                break
            data = changed
    written = reader.finish()
    if cut is not None:
        line, column = position(data, offset)
        if not written.cases:
            raise RejectedReportError(f"not well-formed: {expat.ErrorString(cut.code)}", line, column)
        document.repair(f"cut off: {expat.ErrorString(cut.code)}; what follows is missing", line, column)
    return _report(document, written, is_cut=cut is not None)


def _report(document: Document, written: _Written, *, is_cut: bool) -> ReportFile:
    root = written.root or ""
    if root not in ROOTS:
        if not written.cases:
            hint = _OTHER_FORMATS.get(root, "expected <testsuites> or <testsuite>")
            raise RejectedReportError(f"<{root}> is no JUnit report: {hint}", *position(document.data, 0))
        document.repair(f"the root is <{root}>, not <testsuites>", 1, 1)
    texts = [case.attributes["time"] for case in written.cases if "," in case.attributes.get("time", "")]
    commas = comma_is_decimal([*texts, *([written.root_time] if written.root_time else [])])
    is_complete = not is_cut
    for suite in written.suites:
        missing = suite.missing
        if missing and not is_cut:
            is_complete = False
            document.warn(f"suite {suite.path!r} declares {suite.declared} tests and holds {suite.held}", *suite.place)
    cases = case_results(document, written.cases, is_comma_decimal=commas)
    return ReportFile(
        name=document.name,
        format="junit",
        status=FileStatus.REPAIRED if document.is_repaired else FileStatus.PARSED,
        digest=document.digest,
        size_bytes=document.size_bytes,
        cases=tuple(cases),
        problems=tuple(document.problems),
        is_complete=is_complete,
        is_cut=is_cut,
        started=written.started,
        duration_s=seconds(written.root_time, is_comma_decimal=commas),
        counters=written.numbers.counters,
        measurements=tuple(written.numbers.measurements),
    )


class _Reader:
    """The handlers of one pass."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.written = _Written()
        self.error_offset = 0
        self._open: list[Suite] = []
        self._case: Case | None = None
        self._parts: list[Part] = []
        self._path: list[str] = []
        self._base = 0
        self._data = b""
        self._parser = self._new_parser()

    def read(self, data: bytes) -> None:
        """Read one document, and those written right behind it; ExpatError leaves the place in `error_offset`."""
        self._data = data
        while True:
            try:
                self._parser.Parse(data[self._base :] if self._base else data, True)
            except expat.ExpatError as error:
                self.error_offset = self._base + self._parser.ErrorByteIndex
                is_behind = error.code == expat.errors.codes[expat.errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT]
                if not is_behind or self.written.root is None:
                    raise
                self._data = data = self._next_document(data, self.error_offset)
                if not self._base:
                    return
            else:
                return

    def finish(self) -> _Written:
        """Return what was read; a case that the file breaks off in is kept when it had already failed."""
        if self._case is not None and self._case.reported:
            self.written.cases.append(self._case)
        return self.written

    def _next_document(self, data: bytes, offset: int) -> bytes:
        """Set `_base` to a further document behind the root, 0 if there is none; return the data prepared for it."""
        rest = data[offset:]
        found = [at for at in (rest.find(b"<testsuite"), rest.find(b"<testcase")) if at >= 0]
        place = position(data, offset)
        if not found:
            self.document.repair("text after the report is ignored", *place)
            self._base = 0
            return data
        refuse_declarations(rest[: min(found)])
        self.document.repair("another report follows in the same file; both are read", *place)
        self._base = offset
        self._path.clear()
        self._open.clear()
        self._parser = self._new_parser()
        return data[:offset] + blank(rest[: min(found)]) + rest[min(found) :]

    def _new_parser(self) -> expat.XMLParserType:
        parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True
        parser.buffer_size = 1 << 16
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.StartDoctypeDeclHandler = self._refuse_doctype
        return parser

    def _place(self) -> tuple[int, int]:
        return position(self._data, self._base + self._parser.CurrentByteIndex)

    def _refuse_doctype(self, *_: object) -> None:
        raise RejectedReportError("DOCTYPE declarations are refused", *self._place())

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if ":" in name:
            name = name.rpartition(":")[2]
        path = self._path
        path.append(name)
        case = self._case
        if name == "testcase" and case is None:
            if not self._open:
                self._open_suite({})
            suite = self._open[-1]
            suite.held += 1
            self._case = Case(suite, attributes)
            if self.written.root is None:
                self.written.root = name
        elif case is not None or self._parts:
            if name in _INSIDE_CASE:
                self._open_part(name, attributes)
        elif name == "testsuite" or name == "testsuites" or self.written.root is None:
            self._open_suite(attributes, name)
        elif name in _OUTPUTS or name == "property" or (name in _REPORTED and path[-2] == "testsuite"):
            self._open_part(name, attributes)
        if len(path) > MAX_DEPTH:
            raise RejectedReportError(f"elements are nested deeper than {MAX_DEPTH}", *self._place())

    def _end(self, _name: str) -> None:
        name = self._path.pop()
        if name == "testcase":
            if self._case is not None:
                self.written.cases.append(self._case)
                self._case = None
                if len(self.written.cases) > MAX_CASES:
                    raise RejectedReportError(f"more than {MAX_CASES} cases", *self._place())
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
        is_root = written.root is None
        if is_root:
            written.root = name
            written.root_time = attributes.get("time")
        if written.started is None and "timestamp" in attributes:
            written.started = timestamp(attributes["timestamp"])
        suite = Suite.of(attributes, self._open[-1] if self._open else None, is_container=name != "testsuite")
        suite.place = self._place()
        self._open.append(suite)
        written.suites.append(suite)

    def _open_part(self, name: str, attributes: dict[str, str]) -> None:
        part = Part(name, attributes)
        self._parts.append(part)
        self._parser.CharacterDataHandler = part.texts.append

    def _close_part(self) -> None:
        part = self._parts.pop()
        self._parser.CharacterDataHandler = self._parts[-1].texts.append if self._parts else None
        if self._parts:
            self._parts[-1].parts.append(part)
        elif self._case is not None:
            self._case.add(part)
            if part.name in _RERUNS:
                self._case.suite.reruns += 1
        elif part.name == "property":
            self.written.numbers.add_property(part, self.document)
        elif part.name in _OUTPUTS:
            self.written.numbers.add_output(part.text, self.document)
        elif part.name in _REPORTED and self._open:
            # A suite that failed outside its tests: without a case of its own it would read as green.
            case = Case(self._open[-1], {"name": "", "classname": self._open[-1].path})
            case.add(part)
            self.written.cases.append(case)


