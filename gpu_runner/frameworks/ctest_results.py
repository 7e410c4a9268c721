"""What came of a ctest run: from its `Test.xml`, which tells crash, time-out and skip apart, and from its console.

The console tells the order, and everything when ctest was ended before it wrote that file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from gpu_runner import linux
from gpu_runner.frameworks import MESSAGE_LENGTH, Progressed, tail
from gpu_runner.protocol import Outcome, TestResult
from gpu_runner.records import Records
from gpu_runner.sandbox import Controls, Ended, Ending

_START = re.compile(r"\s+Start\s+(\d+): ")
_RESULT = re.compile(
    r"\s*\d+/\d+ Test\s+#(\d+): .*?\.\.\.*\s*(Passed|[A-Z][a-z ]+\*\*\*.*?|\*\*\*.*?)\s+([\d.]+) sec\s*$"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_EXPRESSION = re.compile(
    r"check|require|expect|assert|fail|error|exception|abort|terminate|panic|cannot", re.IGNORECASE
)
# How a process died, in ctest's words (cmCTestRunTest.cxx, GetExitExceptionString).
_CRASH = re.compile(
    r"segfault|illegal|interrupt|numerical|other_?fault|exception|subprocess (aborted|killed)", re.IGNORECASE
)


class Console:
    """Follows ctest's console: which test runs, and what came of those that ended."""

    def __init__(self, names: Sequence[str], progressed: Progressed) -> None:
        self.names = names
        self.progressed = progressed
        self.started: dict[int, float] = {}
        self.ended: dict[int, tuple[str, float]] = {}
        self._partial = b""
        self._orphans_since: float | None = None

    def output(self, data: bytes) -> None:
        """Take the lines of the console; test output is never on it."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            text = _COLOUR.sub("", line.decode(errors="replace"))
            if (start := _START.match(text)) is not None:
                place = int(start[1]) - 1
                self.started[place] = linux.ticks_now()
                self.progressed(len(self.started) - 1, self.names[place])
            elif (result := _RESULT.match(text)) is not None:
                place = int(result[1]) - 1
                self.ended[place] = (result[2], float(result[3]))
                if "Timeout" in result[2]:
                    self._orphans_since = self.started[place]

    def tick(self, controls: Controls) -> None:
        """End what a timed-out test left: ctest's own kill misses children whose parents are gone."""
        if self._orphans_since is not None:
            controls.end_orphans(self._orphans_since - 1.0)
            self._orphans_since = None

    def order(self) -> list[int]:
        """Return the places in the order in which they started, those that never started last."""
        return [*self.started, *(place for place in range(len(self.names)) if place not in self.started)]


def read_report(folder: Path, ended: Ended) -> dict[str, ET.Element]:
    """Return ctest's record of each test by name; empty when it was ended before it wrote one."""
    reports = sorted(folder.glob("Testing/*/Test.xml"))
    if ended.ending is not Ending.EXITED or not reports:
        return {}
    try:
        root = ET.parse(reports[-1]).getroot()  # noqa: S314 - written by ctest, which escapes test output
    except ET.ParseError:
        return {}
    return {test.findtext("Name", ""): test for test in root.iter("Test") if test.get("Status")}


def result_of(
    place: int,
    attempt: tuple[str, int, str],
    console: Console,
    found: Mapping[str, ET.Element],
    ended: Ended,
    records: Records,
) -> TestResult:
    """Return the result of one place of the list: from ctest's record, else from the console."""
    test, number, name = attempt
    position = list(console.started).index(place) if place in console.started else None
    element = found.get(name)
    if element is None:
        outcome, message = _outcome_without_report(place, console, ended)
        duration = console.ended[place][1] if place in console.ended else None
        return TestResult(test, outcome, number, position, duration, None, message)
    facts = {item.get("name"): item.findtext("Value", "") for item in element.iter("NamedMeasurement")}
    output = "".join(item.findtext("Value", "") for item in element.iter("Measurement"))
    outcome = _outcome(str(element.get("Status")), facts.get("Exit Code", ""), facts.get("Completion Status", ""))
    if outcome is Outcome.NOT_RUN:
        position = None
    records.add_text(test, output)
    failure_type, message = _failure(outcome, facts, output)
    duration = float(facts["Execution Time"]) if facts.get("Execution Time") else None
    return TestResult(test, outcome, number, position, duration, failure_type, message, tail(output, outcome))


def _outcome(status: str, exit_code: str, completion: str) -> Outcome:
    if status == "passed":
        return Outcome.PASSED
    if status == "notrun":
        is_skip = completion.startswith("SKIP_") or completion == "Disabled"
        return Outcome.SKIPPED if is_skip else Outcome.NOT_RUN
    if exit_code == "Timeout":
        return Outcome.TIMED_OUT
    return Outcome.CRASHED if _CRASH.search(exit_code) else Outcome.FAILED


def _outcome_without_report(place: int, console: Console, ended: Ended) -> tuple[Outcome, str | None]:
    if place in console.ended:
        status = console.ended[place][0]
        words = status.replace("*", "").strip(" :")
        for sign, outcome in (
            ("Passed", Outcome.PASSED), ("Skipped", Outcome.SKIPPED), ("Disabled", Outcome.SKIPPED),
            ("Not Run", Outcome.NOT_RUN), ("Timeout", Outcome.TIMED_OUT), ("Exception", Outcome.CRASHED),
        ):  # fmt: skip
            if sign in status:
                return outcome, None if outcome is Outcome.PASSED else words
        return Outcome.FAILED, words
    if place not in console.started:
        return Outcome.NOT_RUN, f"the suite ended before it: {ended.detail or ended.ending}"
    if ended.ending is Ending.TIMED_OUT:
        return Outcome.TIMED_OUT, "the time-out of the suite ended it"
    if ended.ending is Ending.OVER_MEMORY:
        return Outcome.KILLED, f"the memory guard ended it: {ended.detail}"
    return Outcome.UNKNOWN, f"ctest ended before it told the outcome (exit code {ended.exit_code})"


def _failure(outcome: Outcome, facts: Mapping[str | None, str], output: str) -> tuple[str | None, str | None]:
    """Return the kind of a failure and the line that names it."""
    if outcome is Outcome.PASSED:
        return None, None
    if outcome in {Outcome.SKIPPED, Outcome.NOT_RUN}:
        return None, facts.get("Completion Status")
    kind = facts.get("Exit Code")
    if kind == "Failed":
        kind = f"exit code {facts.get('Exit Value')}"
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("LIKEWISE_")]
    telling = [line for line in lines if _EXPRESSION.search(line)] or lines[-1:]
    message = facts.get("Fail Reason") or (telling[0] if telling else kind)
    return kind, message[:MESSAGE_LENGTH] if message else None
