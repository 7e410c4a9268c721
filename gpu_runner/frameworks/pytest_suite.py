"""pytest: all tests in one process, in any order, through a plugin that writes down every phase as it happens.

The files that hold the wanted tests are given to pytest, so that a file none of whose tests run is not imported; the
plugin then selects and orders. After a crash the running test has crashed and the later ones have not run: nothing is
resumed in another process. The time-out of a test is kept from outside, because a hanging process cannot keep its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_runner.failures import RunnerError
from gpu_runner.frameworks import MESSAGE_LENGTH, Listing, Progressed, Site, SuiteRun, tail
from gpu_runner.host import ask
from gpu_runner.protocol import Outcome, TestResult
from gpu_runner.records import Records
from gpu_runner.sandbox import Controls, Ended, Ending

process_model = "one process for all tests"

LIST_TIMEOUT_S = 900.0
VERSION_TIMEOUT_S = 60.0
PLUGIN = "likewise_pytest_plugin"
NO_MODULE = "No module named 'pytest'"
PROGRESS_LETTERS = ".FEsxX "
HIDDEN_NAMES = ("service", "workers", "migrations", "gpu_runner")
# pytest's own exit codes: all passed, some failed, interrupted, no tests.
ENDED_BY_ITSELF = frozenset({0, 1, 2, 5})


def find(environment: Mapping[str, str]) -> str:
    """Return the version of the pytest of this interpreter; a suite may name another one."""
    del environment  # a suite names its interpreter; without one it is this one, wherever PATH leads
    answer = ask([sys.executable, "-c", "import pytest; print(pytest.__version__)"], VERSION_TIMEOUT_S)
    if answer is None or answer.exit_code != 0:
        raise _missing(sys.executable)
    return answer.text.strip()


def _missing(python: str, problem: str = "has no pytest") -> RunnerError:
    return RunnerError(
        "missing_framework",
        f"the interpreter {python!r} {problem}",
        "set `python` of the suite to the interpreter of the project's environment, or install pytest into this one",
    )


def list_tests(site: Site) -> Listing:
    """Return the tests that pytest collects, in its order."""
    events = _Events(site.own / "report.jsonl", site.suite.test_timeout_s, None)
    command = _command(site, None, [*site.suite.paths, "--collect-only", "-q"])
    ended = site.launch(command, LIST_TIMEOUT_S, events)
    text = ended.output.decode(errors="replace").strip()
    if events.not_collected:
        listed = "; ".join(f"{node}: {message}" for node, message in events.not_collected.items())
        raise RunnerError(
            "list_failed",
            f"pytest cannot collect {len(events.not_collected)} of its files: {listed[-MESSAGE_LENGTH:]}",
            "repair them, or leave them out with arguments = ['--ignore=PATH']",
        )
    if events.collected is None:
        if ended.ending is Ending.NOT_STARTED:
            raise _missing(command[0], f"cannot be started: {ended.detail}")
        if NO_MODULE in text:
            raise _missing(command[0])
        raise RunnerError(
            "list_failed",
            f"{' '.join(command)} collected nothing: {text[-MESSAGE_LENGTH:] or ended.detail or ended.ending}",
            "check python, cwd, paths and arguments of the suite",
        )
    if not events.collected:
        raise RunnerError("no_tests", f"pytest finds no tests in {site.cwd}", "check paths and arguments of the suite")
    tests = tuple(dict.fromkeys(events.collected))
    return Listing(tests, str(events.session["pytest"]), {"session": events.session})


def complete(_listing: Listing, tests: Sequence[str]) -> tuple[str, ...]:
    """Return the tests: pytest's fixtures are no tests of their own."""
    return tuple(tests)


def run_tests(site: Site, listing: Listing, tests: Sequence[str], progressed: Progressed) -> SuiteRun:
    """Run the tests in this order, each once."""
    if len(set(tests)) < len(tests):
        raise RunnerError("bad_treatment", "pytest runs a test once in a session", "name each test once")
    session = listing.data["session"]
    root = Path(session["rootdir"])
    files = dict.fromkeys(str(root / test.split("::", 1)[0]) for test in tests)
    options = [f"--rootdir={root}", *(["-c", session["inifile"]] if session["inifile"] else [])]
    events = _Events(site.own / "report.jsonl", site.suite.test_timeout_s, progressed)
    selection = _selection(site, session, list(files))
    command = _command(site, tests, [*options, *selection, "--no-summary", "-q"])
    ended = site.launch(command, site.suite.timeout_s, events)
    return _suite_run(tests, events, ended)


def _selection(site: Site, session: Mapping[str, Any], files: list[str]) -> list[str]:
    """Return the arguments that name the files; through a file where pytest can read them from one (since 8.2)."""
    version = tuple(int(part) for part in session["pytest"].split(".")[:2] if part.isdigit())
    if version < (8, 2) or any("\n" in file for file in files):
        return files
    listed = site.own / "files.txt"
    listed.write_text("\n".join(files) + "\n", "utf-8", errors="surrogateescape")
    return [f"@{listed}"]


def _command(site: Site, tests: Sequence[str] | None, arguments: Sequence[str]) -> list[str]:
    """Write the plugin and its settings, and return the command."""
    folder = site.own / "plugin"
    folder.mkdir(parents=True)
    shutil.copyfile(Path(__file__).with_name("pytest_plugin.py"), folder / f"{PLUGIN}.py")
    settings = {
        "report": str(site.own / "report.jsonl"),
        "tests": None if tests is None else list(tests),
        "hidden_names": HIDDEN_NAMES,
        "hidden_root": os.path.realpath(Path(__file__).parents[2]),
    }
    (folder / "likewise_settings.json").write_text(json.dumps(settings), "utf-8")
    python = site.suite.python or sys.executable
    if "/" in python:  # a bare name is looked up on the PATH
        python = str(site.cwd / python)
    # Only the plugin's folder is added to the path: `sys.path` keeps everything else as the project has it.
    # It starts as `python -m pytest` does, with the current folder, by its full name, in front.
    start = (
        f"import os, sys; sys.path[:1] = [os.getcwd() if sys.path[0] == '' else sys.path[0], {str(folder)!r}]; "
        "import pytest; sys.exit(pytest.console_main())"
    )
    own = ["-p", PLUGIN, "-p", "no:cacheprovider", "-p", "no:randomly"]
    return [python, "-c", start, *own, *site.suite.arguments, *arguments]


@dataclass(slots=True)
class _Attempt:
    number: int
    position: int
    phases: list[dict[str, Any]] = field(default_factory=list)
    is_finished: bool = False


class _Events:
    """Follows the plugin's report while the suite runs, and keeps the time-out of the running test."""

    def __init__(self, path: Path, test_timeout_s: float, progressed: Progressed | None) -> None:
        self.path = path
        self.test_timeout_s = test_timeout_s
        self.progressed = progressed
        self.session: dict[str, Any] = {}
        self.collected: list[str] | None = None
        self.not_collected: dict[str, str] = {}
        self.attempts: dict[str, list[_Attempt]] = {}
        self.running: str | None = None
        self.started = 0
        self.printed: list[str] = []
        self._partial = b""
        self.interrupted: str | None = None
        self.has_ended = False
        self._offset = 0
        self._deadline: float | None = None

    def output(self, data: bytes) -> None:
        """Keep the record lines that are printed where pytest captures nothing; nobody can tell whose they are."""
        if self.session.get("capture", "no") == "no":
            *lines, self._partial = (self._partial + data).split(b"\n")
            # pytest's own progress letters stand before what the next test prints.
            texts = (line.decode(errors="replace").lstrip(PROGRESS_LETTERS) for line in lines)
            self.printed += [text for text in texts if text.startswith("LIKEWISE_")]

    def tick(self, controls: Controls) -> None:
        """Read what is new."""
        self._read()
        controls.deadline = self._deadline

    def _read(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        complete_lines = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete_lines)
        for line in complete_lines.splitlines():
            self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "session":
                self.session = {key: value for key, value in event.items() if key not in {"event", "time"}}
            case "not_collected":
                self.not_collected[event["node"]] = event["message"]
            case "collected":
                self.collected = event["tests"]
            case "start":
                self.running = event["test"]
                self._begin(event["test"])
                # The plugin's monotonic clock is this host's: the time before this line was read counts.
                self._deadline = event["time"] + self.test_timeout_s
            case "phase":
                attempts = self.attempts[event["test"]]
                # A plugin that repeats a failed test starts a new attempt with its next set-up.
                if event["when"] == "setup" and attempts[-1].phases:
                    self._begin(event["test"])
                attempts[-1].phases.append(event)
            case "finish":
                self.attempts[event["test"]][-1].is_finished = True
                self.running = self._deadline = None
            case "interrupted":
                self.interrupted = event["message"]
            case "end":
                self.has_ended = True
                self._deadline = None

    def _begin(self, test: str) -> None:
        attempts = self.attempts.setdefault(test, [])
        attempts.append(_Attempt(len(attempts) + 1, self.started))
        if self.progressed is not None:
            self.progressed(self.started, test)
        self.started += 1


def _suite_run(tests: Sequence[str], events: _Events, ended: Ended) -> SuiteRun:
    records = Records()
    records.add_text(None, "\n".join(events.printed) if events.session.get("capture") == "no" else "")
    ran = sorted(
        ((attempt, test) for test, attempts in events.attempts.items() for attempt in attempts),
        key=lambda pair: pair[0].position,
    )
    results = [_result(test, attempt, events, ended, records) for attempt, test in ran]
    results += [_not_run(test, events, ended) for test in tests if test not in events.attempts]
    return SuiteRun(ended, tuple(results), records)


def _result(test: str, attempt: _Attempt, events: _Events, ended: Ended, records: Records) -> TestResult:
    is_last = attempt is events.attempts[test][-1]
    phases = attempt.phases
    if attempt.is_finished or not is_last:
        outcome, kind, message = _outcome(phases)
    else:
        outcome, kind, message = _unfinished(events, ended)
    for phase in phases:
        records.add_text(test, "\n".join(phase["records"]) if phase is phases[-1] else "")
        records.add_properties(test, [(name, value) for name, value in phase["properties"]])
    parts = [text for _, text in phases[-1]["sections"]] if phases else []
    parts += [phase["details"] for phase in phases if phase["details"]]
    if not attempt.is_finished and is_last:
        parts.append(ended.output.decode(errors="replace"))
    duration = sum(phase["duration_s"] for phase in phases) if phases else None
    output = tail("\n".join(part for part in parts if part), outcome)
    return TestResult(test, outcome, attempt.number, attempt.position, duration, kind, message, output)


def _outcome(phases: Sequence[Mapping[str, Any]]) -> tuple[Outcome, str | None, str | None]:
    """Return what the phases of a finished attempt come to; the first that is not a plain pass decides."""
    for phase in phases:
        kind, message = phase["failure_type"], phase["message"]
        if phase["outcome"] == "failed":
            return (Outcome.FAILED if phase["when"] == "call" else Outcome.ERROR), kind, message
        if phase["outcome"] == "rerun":
            return Outcome.FAILED, kind, message
        if phase["outcome"] == "skipped":
            if phase["expected"] is not None:
                return Outcome.EXPECTED_FAILURE, kind, message
            return Outcome.SKIPPED, None, message
    if not phases:
        return Outcome.UNKNOWN, None, "the test started and ended without a report"
    return Outcome.PASSED, None, None


def _unfinished(events: _Events, ended: Ended) -> tuple[Outcome, str | None, str | None]:
    """Return what happened to the test that was running when the process ended."""
    match ended.ending:
        case Ending.TEST_TIMED_OUT:
            return Outcome.TIMED_OUT, "timeout", f"no end after {events.test_timeout_s:g} s"
        case Ending.TIMED_OUT:
            return Outcome.TIMED_OUT, "timeout", "the time-out of the suite ended it"
        case Ending.OVER_MEMORY:
            return Outcome.KILLED, "memory", f"the memory guard ended it: {ended.detail}"
    if events.has_ended:
        return Outcome.ERROR, "exit", f"the session was ended from within the test: {events.interrupted or 'no reason'}"
    if ended.exit_code is not None and ended.exit_code < 0:
        name = signal.Signals(-ended.exit_code).name
        return Outcome.CRASHED, name, f"the process died of {name}"
    return Outcome.CRASHED, "exit", f"the process ended in the middle of the test with exit code {ended.exit_code}"


def _not_run(test: str, events: _Events, ended: Ended) -> TestResult:
    if events.not_collected:
        node, text = next(iter(events.not_collected.items()))
        reason = f"{node} could not be collected: {text}"
    elif events.collected is not None and test not in events.collected:
        reason = "pytest did not collect it in this execution"
    else:
        reason = (
            f"the session ended before it{f', in {events.running}' if events.running else f': {_last_line(ended)}'}"
        )
    return TestResult(test, Outcome.NOT_RUN, message=reason[:MESSAGE_LENGTH])


def _last_line(ended: Ended) -> str:
    lines = ended.output.decode(errors="replace").strip().splitlines()
    return ended.detail or (lines[-1].strip() if lines else f"{ended.ending}, exit code {ended.exit_code}")
