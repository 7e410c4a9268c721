"""What ctest writes as text: Testing/Temporary/LastTest.log, and its lines on the console."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gpu_runner.protocol import Outcome
from service.ingest.ctest import add_result, ctest_file
from service.ingest.document import Document
from service.ingest.durations import plain_seconds
from service.ingest.report import CaseResult, RejectedReportError, ReportFile

LOG, CONSOLE = "ctest-log", "ctest-console"

_CONSOLE_LINE = re.compile(
    r"^(?:\d+: )?\s*(?:\d+/\d+ )?\s*Test\s+#\d+: (?P<name>.+?) ?\.{2,}(?P<words>[^.].*?)??\s+(?P<time>[\d.]+) sec\s*$"
)
_SUMMARY = re.compile(r"^\d+% tests passed\b", re.MULTILINE)
_RULE = re.compile(r"^-{20,}$")
_BEGIN = re.compile(r"^\d+/\d+ Test: (.*)$")
_START_TIME = re.compile(r'^".*" start time: (.*)$')


def is_log(document: Document) -> bool:
    """Return whether this is LastTest.log."""
    return document.data.startswith(b"Start testing: ")


def is_console(document: Document) -> bool:
    """Return whether this is what ctest prints."""
    head = document.data[: 1 << 20].lstrip()
    if head.startswith(b"<"):
        return False
    return any(_CONSOLE_LINE.match(line) for line in head.decode(errors="replace").splitlines())


@dataclass(slots=True)
class _Entry:
    """A test of the log; `word` is what the log calls its end, `reason` the line below a `Test ... Reason:`."""

    name: str
    start: str | None = None
    time: str = ""
    word: str = ""
    reason: str = ""
    output: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> Outcome:
        """Return the outcome; a test that never started has an empty start time, and the log calls it passed."""
        if self.start is not None and not self.start.strip():
            return Outcome.NOT_RUN
        if self.word == "Passed":
            return Outcome.SKIPPED if self.reason.startswith("Skip") else Outcome.PASSED
        return Outcome.FAILED


def read_log(document: Document) -> ReportFile:
    """Return what LastTest.log says: outputs and attempts, but no reason of a failure."""
    lines = _text(document).split("\n")
    entries, is_cut = _entries(lines)
    if not entries and not any(line.startswith("End testing: ") for line in lines):
        raise RejectedReportError("LastTest.log without a test", 1, 1)
    results: list[CaseResult] = []
    for entry in entries:
        output = "\n".join(entry.output)
        add_result(
            document,
            results,
            entry.name.strip(),
            entry.outcome,
            plain_seconds(entry.time),
            entry.reason or None,
            output,
        )
    if is_cut:
        document.repair("the last test begins and does not end", len(lines), 1)
    document.warn("LastTest.log tells no skip from a pass and no time-out or crash from a failure; send Test.xml too")
    return ctest_file(document, LOG, results, is_cut=is_cut, is_complete=not is_cut)


def _entries(lines: list[str]) -> tuple[list[_Entry], bool]:
    """Return the finished tests of the log, and whether the last one does not end."""
    entries: list[_Entry] = []
    entry: _Entry | None = None
    in_output = False
    for i, line in enumerate(lines):
        if entry is None:
            begin = _BEGIN.match(line)
            entry = _Entry(begin.group(1)) if begin else None
            in_output = False
        elif in_output:
            if line == "<end of output>":
                in_output = False
            else:
                entry.output.append(line)
        elif _RULE.match(line) and lines[i - 1] == "Output:":
            in_output = True
        elif line.startswith("Test time ="):
            entry.time = line.removeprefix("Test time =").removesuffix(" sec").strip()
        elif start := _START_TIME.match(line):
            entry.start = start.group(1)
        elif line in {"Test Passed.", "Test Failed.", "Test Pass Reason:", "Test Fail Reason:"}:
            entry.word = "Passed" if line.startswith("Test Pass") else "Failed"
            entry.reason = lines[i + 1] if line.endswith("Reason:") and i + 1 < len(lines) else ""
            entries.append(entry)
            entry = None
    return entries, entry is not None


def read_console(document: Document) -> ReportFile:
    """Return what the lines `N/M Test #K: name ....***Reason  0.01 sec` of the console say."""
    text = _text(document)
    results: list[CaseResult] = []
    for line in text.split("\n"):
        found = _CONSOLE_LINE.match(line)
        if found is None:
            continue
        outcome, reason = console_outcome(found["words"] or "")
        add_result(document, results, found["name"], outcome, plain_seconds(found["time"]), reason, "")
    # ctest's last word; without it the console was cut, or ctest itself was killed.
    is_cut = _SUMMARY.search(text) is None
    if is_cut:
        document.repair("ctest did not come to its summary", text.count("\n") + 1, 1)
    return ctest_file(document, CONSOLE, results, is_cut=is_cut, is_complete=not is_cut)


def console_outcome(words: str) -> tuple[Outcome, str | None]:
    """Return the outcome and the reason from the words between a test's dots and its time.

    >>> console_outcome("   Passed"), console_outcome("***Exception: SegFault")
    ((<Outcome.PASSED: 'passed'>, None), (<Outcome.CRASHED: 'crashed'>, 'Exception: SegFault'))
    >>> console_outcome("Subprocess aborted***Exception:")[0], console_outcome("***Not Run (Disabled)")[0]
    (<Outcome.CRASHED: 'crashed'>, <Outcome.SKIPPED: 'skipped'>)
    """
    before, _, after = words.strip().partition("***")
    if not after and before.startswith("Passed"):
        return Outcome.PASSED, None
    reason = " ".join(f"{after} {before}".split()).strip()
    for start, outcome in (
        ("Timeout", Outcome.TIMED_OUT),
        ("Exception", Outcome.CRASHED),
        ("Skipped", Outcome.SKIPPED),
        ("Not Run (Disabled)", Outcome.SKIPPED),
        ("Not Run", Outcome.NOT_RUN),
        ("Failed", Outcome.FAILED),
    ):
        if reason.startswith(start):
            return outcome, None if reason == "Failed" else reason
    return Outcome.UNKNOWN, reason or None


def _text(document: Document) -> str:
    """Return the document as text with plain line ends."""
    try:
        text = document.data.decode()
    except UnicodeDecodeError:
        text = document.data.decode(errors="replace")
        document.repair("bytes that are not UTF-8 became U+FFFD")
    return text.replace("\r\n", "\n")
