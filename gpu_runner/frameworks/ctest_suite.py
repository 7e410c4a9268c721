"""ctest: a process for each test, in any order, through a CTestTestfile.cmake written from ctest's own listing.

The build folder is not touched: the file, `Testing/` and its cost history are private. `arguments` of the suite select
tests when they are listed (`-C`, `-L`, `-R`, `-E`); what is listed is then run serially, without them. Results come from
ctest's `Test.xml`, which names crash, time-out and skip apart; its console tells the order, and everything when ctest
was ended before it wrote that file.
"""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_runner import linux
from gpu_runner.failures import RunnerError
from gpu_runner.frameworks import MESSAGE_LENGTH, Listing, Progressed, Site, SuiteRun, tail
from gpu_runner.host import ask
from gpu_runner.protocol import Outcome, TestResult
from gpu_runner.records import Records
from gpu_runner.sandbox import Collector, Controls, Ended, Ending

process_model = "one process a test"

LIST_TIMEOUT_S = 600.0
VERSION_TIMEOUT_S = 30.0
# ctest keeps the head of a long output and loses its failing tail; the tail is cut here instead.
OUTPUT_BYTES = 16 * 1024 * 1024
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
_CONSOLE_VARIABLES = frozenset({"CTEST_OUTPUT_ON_FAILURE", "CTEST_PROGRESS_OUTPUT", "CTEST_USE_VERBOSE"})
# Not carried over: the order is ours, and resource groups need a specification that only `ctest` itself was given.
_DROPPED = frozenset({"COST", "DEPENDS", "RESOURCE_GROUPS", "GENERATED_RESOURCE_SPEC_FILE", "MEASUREMENT"})


def find(environment: Mapping[str, str]) -> str:
    """Return the version of the ctest that would be used."""
    program = _program(environment)
    answer = ask([program, "--version"], VERSION_TIMEOUT_S)
    match = None if answer is None else re.search(r"ctest version (\S+)", answer.text)
    if match is None:
        raise RunnerError("missing_framework", f"{program} does not tell its version", "install CMake again")
    return match[1]


def _program(environment: Mapping[str, str]) -> str:
    program = shutil.which("ctest", path=environment.get("PATH"))
    if program is None:
        raise RunnerError(
            "missing_framework",
            f"there is no ctest on the PATH {environment.get('PATH')!r}",
            "install CMake, or `pip install cmake` into the environment of the runner",
        )
    return program


def list_tests(site: Site) -> Listing:
    """Return the tests of `test_dir` in ctest's serial order."""
    program = _program(site.environment)
    folder = site.cwd / (site.suite.test_dir or ".")
    collected = Collector()
    command = [program, "--show-only=json-v1", "--test-dir", str(folder), *site.suite.arguments]
    ended = site.launch(command, LIST_TIMEOUT_S, collected)
    text = collected.data.decode(errors="replace")
    try:
        described = json.loads(text[text.index("{") :])
    except ValueError:
        described = None
    if ended.exit_code != 0 or described is None:
        raise RunnerError(
            "list_failed",
            f"{' '.join(command)} listed nothing: {text.strip()[-MESSAGE_LENGTH:] or ended.detail or ended.ending}",
            "test_dir of the suite is the build folder, where CTestTestfile.cmake lies after the build",
        )
    tests = _unique([_entry(test) for test in described["tests"]])
    if not tests:
        raise RunnerError(
            "no_tests",
            f"ctest finds no tests in {folder}",
            "check that test_dir is the build folder, that the build calls enable_testing(), and the arguments",
        )
    names = _dependencies_first(_by_cost(tests), {test["name"]: test for test in tests})
    return Listing(tuple(names), find(site.environment), {"tests": tests})


def _entry(test: Mapping[str, Any]) -> dict[str, Any]:
    properties = {item["name"]: item["value"] for item in test.get("properties", [])}
    return {"name": test["name"], "command": test.get("command"), "properties": properties}


def _unique(tests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tell tests of one name, registered in different folders, apart by a number."""
    seen: dict[str, int] = {}
    for test in tests:
        seen[test["name"]] = seen.get(test["name"], 0) + 1
        if seen[test["name"]] > 1:
            test["name"] = f"{test['name']} ({seen[test['name']]})"
    return tests


def _by_cost(tests: Sequence[Mapping[str, Any]]) -> list[str]:
    ordered = sorted(tests, key=lambda test: -float(test["properties"].get("COST", 0.0)))
    return [test["name"] for test in ordered]


def _needs(name: str, entries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return list(entries[name]["properties"].get("DEPENDS", []))


def _dependencies_first(names: Sequence[str], entries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the order that ctest runs serially: a test's dependencies, as far as they run, stand before it."""
    selected = set(names)
    order = {name: place for place, name in enumerate(entries)}
    placed: dict[str, None] = {}
    for name in names:
        waiting, found = [name], set()
        while waiting:
            for needed in _needs(waiting.pop(), entries):
                if needed in selected and needed not in found:
                    found.add(needed)
                    waiting.append(needed)
        for needed in sorted(found - {name}, key=order.__getitem__):
            placed.setdefault(needed)
        placed.setdefault(name)
    return list(placed)


def complete(listing: Listing, tests: Sequence[str]) -> tuple[str, ...]:
    """Return the tests with the set-up and clean-up tests of the fixtures that they require."""
    entries = {test["name"]: test for test in listing.data["tests"]}

    def fixtures(name: str, role: str) -> set[str]:
        return set(entries[name]["properties"].get(f"FIXTURES_{role}", []))

    chosen = dict.fromkeys(tests)
    while True:
        required = set().union(*(fixtures(name, "REQUIRED") for name in chosen))
        set_up = [name for name in entries if name not in chosen and fixtures(name, "SETUP") & required]
        cleaned = [name for name in entries if name not in chosen and fixtures(name, "CLEANUP") & required]
        if not set_up and not cleaned:
            break
        chosen |= dict.fromkeys([*set_up, *cleaned])
    order = list(tests)
    for name in chosen:
        if name not in tests:
            users = [place for place, user in enumerate(order) if name in _needs(user, entries)]
            served = [place for place, user in enumerate(order) if user in _needs(name, entries)]
            order.insert(min(users) if users else max(served, default=len(order) - 1) + 1, name)
    return tuple(_dependencies_first(order, entries))


def run_tests(site: Site, listing: Listing, tests: Sequence[str], progressed: Progressed) -> SuiteRun:
    """Run the tests in this order; a test that is named twice runs twice."""
    folder = site.own / "ctest"
    folder.mkdir(parents=True)
    attempts = _attempts(tests)
    (folder / "CTestTestfile.cmake").write_text(_test_file(listing, attempts), "utf-8", errors="surrogateescape")
    size = str(OUTPUT_BYTES)
    command = [
        _program(site.environment), "--test-dir", str(folder), "-j", "1", "-T", "Test", "--no-compress-output",
        "--no-tests=error", "--timeout", f"{site.suite.test_timeout_s:g}",
        "--test-output-size-passed", size, "--test-output-size-failed", size,
    ]  # fmt: skip
    console = _Console([test for test, _, _ in attempts], progressed)
    # Variables that would mix other things into the console.
    environment = {name: value for name, value in site.environment.items() if name not in _CONSOLE_VARIABLES}
    ended = replace(site, environment=environment).launch(command, site.suite.timeout_s, console)
    records = Records()
    found = _read_report(folder, ended)
    results = [_result(place, attempts[place], console, found, ended, records) for place in console.order()]
    return SuiteRun(ended, tuple(results), records)


def _attempts(tests: Sequence[str]) -> list[tuple[str, int, str]]:
    """Return for each place its test, attempt and the name under which ctest knows it."""
    taken = set(tests)
    seen: dict[str, int] = {}
    found = []
    for test in tests:
        seen[test] = seen.get(test, 0) + 1
        name = test
        while seen[test] > 1 and name in taken:
            name += f" attempt {seen[test]}"
        taken.add(name)
        found.append((test, seen[test], name))
    return found


def _test_file(listing: Listing, attempts: Sequence[tuple[str, int, str]]) -> str:
    entries = {test["name"]: test for test in listing.data["tests"]}
    known = {name for _, _, name in attempts}
    lines = []
    for test, _, name in attempts:
        entry = entries[test]
        command = [_quote(part) for part in entry["command"]] if entry["command"] else ["NOT_AVAILABLE"]
        lines.append(f"add_test({_quote(name)} {' '.join(command)})")
        properties = dict(entry["properties"])
        needed = [other for other in properties.get("DEPENDS", []) if other in known]
        kept = {key: value for key, value in properties.items() if key not in _DROPPED}
        pairs = [f"{key} {_quote(_value(key, value))}" for key, value in kept.items()]
        pairs += [f"DEPENDS {_quote(_value('DEPENDS', needed))}"] if needed else []
        if pairs:
            lines.append(f"set_tests_properties({_quote(name)} PROPERTIES {' '.join(pairs)})")
    return "\n".join(lines) + "\n"


def _value(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, list):
        return ";".join(str(item).replace(";", "\\;") for item in value)
    if key == "TIMEOUT_AFTER_MATCH":
        return ";".join([f"{value['timeout']:g}", *(str(item).replace(";", "\\;") for item in value["regex"])])
    return f"{value:g}" if isinstance(value, float) else str(value)


def _quote(text: str) -> str:
    """Return a bracket argument: nothing in it is special to CMake, not even `#`."""
    level = 1
    while f"]{'=' * level}]" in f"{text}]":
        level += 1
    return f"[{'=' * level}[{'' if not text.startswith(chr(10)) else chr(10)}{text}]{'=' * level}]"


class _Console:
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


def _read_report(folder: Path, ended: Ended) -> dict[str, ElementTree.Element]:
    """Return ctest's record of each test by name; empty when it was ended before it wrote one."""
    reports = sorted(folder.glob("Testing/*/Test.xml"))
    if ended.ending is not Ending.EXITED or not reports:
        return {}
    try:
        root = ElementTree.parse(reports[-1]).getroot()  # noqa: S314 - written by ctest, which escapes test output
    except ElementTree.ParseError:
        return {}
    return {test.findtext("Name", ""): test for test in root.iter("Test") if test.get("Status")}


def _result(
    place: int,
    attempt: tuple[str, int, str],
    console: _Console,
    found: Mapping[str, ElementTree.Element],
    ended: Ended,
    records: Records,
) -> TestResult:
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
    counters = records.of_test(test)
    return TestResult(test, outcome, number, position, duration, failure_type, message, tail(output, outcome), counters)


def _outcome(status: str, exit_code: str, completion: str) -> Outcome:
    if status == "passed":
        return Outcome.PASSED
    if status == "notrun":
        is_skip = completion.startswith("SKIP_") or completion == "Disabled"
        return Outcome.SKIPPED if is_skip else Outcome.NOT_RUN
    if exit_code == "Timeout":
        return Outcome.TIMED_OUT
    return Outcome.CRASHED if _CRASH.search(exit_code) else Outcome.FAILED


def _outcome_without_report(place: int, console: _Console, ended: Ended) -> tuple[Outcome, str | None]:
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
