"""From a case as it is written to its results: outcome, words of the failure, output, one result an attempt."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpu_runner.protocol import Outcome
from service.ingest.document import Document
from service.ingest.durations import comma_is_decimal, plain_seconds, seconds
from service.ingest.events import Numbers
from service.ingest.identity import TestIdentity, dotted_module, identity_from_junit
from service.ingest.outcomes import failure_outcome, skipped_outcome, state_outcome, tolerated
from service.ingest.repeats import Written, settle
from service.ingest.report import CaseResult, RejectedReportError, Repetition

MAX_CASES = 1_000_000
MAX_NAME = 2_000
MAX_MESSAGE = 16_000
MAX_TEXT = 64_000

# Playwright and the like write the project, which is a browser, where others write the machine.
_BROWSERS = re.compile(
    r"^(?:chromium|firefox|webkit|chrome|msedge|(?:Mobile|Google|Microsoft|Desktop) \w+)$", re.IGNORECASE
)
_STRESS = re.compile(r"@stress-\d+$")
_PYTEST_SUITES = frozenset({"pytest", "pytest tests"})
_SAYS_NOTHING = frozenset({"", "failed", "failure", "error", "test failed"})
# doctest's message holds the values of an expression that only its text names.
_VALUES_ONLY = re.compile(r"^[^A-Za-z]*$")
_PYTEST_LINES = re.compile(r"^E {3}(.*)$", re.MULTILINE)
_PYTEST_TYPE = re.compile(r"^\S.*:\d+: ([A-Za-z_][\w.]*)\s*$")


@dataclass(slots=True, eq=False)
class Suite:
    """An open suite: its path, what it declares, how many cases it holds, those of inner suites included."""

    path: str
    hostname: str
    declared: int | None
    is_pytest: bool
    is_stress: bool
    held: int = 0
    reruns: int = 0
    place: tuple[int, int] = (1, 1)
    browser: str = field(init=False)
    bare: Written = field(init=False)

    def __post_init__(self) -> None:
        self.browser = self.hostname if _BROWSERS.match(self.hostname) else ""
        self.bare = Written(self, is_bare=True, is_pytest=self.is_pytest)

    @classmethod
    def of(cls, attributes: dict[str, str], parent: Suite | None, *, is_container: bool) -> Suite:
        """Return the suite of an element. A container, such as the root, adds nothing to the path."""
        name = attributes.get("name", "").strip()
        package = attributes.get("package", "")
        if package and name.isidentifier():
            # Ant writes a class's package beside its short name.
            name = f"{package}.{name}"
        path = _STRESS.sub("", name)
        outer = parent.path if parent else ""
        if is_container:
            path = outer
        elif outer and path:
            path = path if path.startswith((f"{outer}.", f"{outer}/", f"{outer}::")) else f"{outer} / {path}"
        declared = attributes.get("tests", "")
        return cls(
            path=path or outer,
            hostname=attributes.get("hostname", "") or (parent.hostname if parent else ""),
            declared=int(declared) if declared.isascii() and declared.isdigit() and len(declared) < 10 else None,
            is_pytest=name in _PYTEST_SUITES or (parent is not None and parent.is_pytest),
            is_stress=path != name and not is_container,
        )

    @property
    def missing(self) -> int:
        """Return how many tests are declared and not there; some producers count reruns as tests."""
        return max((self.declared or 0) - self.held - self.reruns, 0)


@dataclass(slots=True)
class Part:
    """An element inside a case, with its text and its own parts."""

    name: str
    attributes: dict[str, str]
    texts: list[str] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Return the element's own text."""
        return "".join(self.texts)


@dataclass(slots=True)
class Case:
    """A case as it is written."""

    suite: Suite
    attributes: dict[str, str]
    parts: list[Part] | None = None

    def add(self, part: Part) -> None:
        """Take a finished part."""
        if self.parts is None:
            self.parts = [part]
        else:
            self.parts.append(part)

    @property
    def reported(self) -> bool:
        """Return whether a failure or an error was read for it."""
        return any(part.name in {"failure", "error"} for part in self.parts or ())


class Collector:
    """Turns the cases of one file into results as they are read, so that nothing else of a case is kept."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.results: list[CaseResult] = []
        self._written: list[Written] = []
        self._comma_times: list[tuple[int, str]] = []
        self._dropped = 0
        self._unreadable = 0

    def finish(self, other_times: Sequence[str]) -> tuple[list[CaseResult], bool | None]:
        """Return the results in order, attempts told apart from rows and repeats, and what a comma means in this file.

        `other_times` are times of the file that belong to no case.
        """
        document = self.document
        is_comma_decimal = comma_is_decimal([*(text for _, text in self._comma_times), *other_times])
        for i, text in self._comma_times:
            duration_s = seconds(text, is_comma_decimal=is_comma_decimal)
            self._unreadable += duration_s is None
            self.results[i] = replace(self.results[i], duration_s=duration_s)
        if self._dropped:
            word = "case" if self._dropped == 1 else "cases"
            document.warn(f"{self._dropped} {word} without a name and without a result dropped")
        if self._unreadable:
            word = "duration" if self._unreadable == 1 else "durations"
            document.warn(f"{self._unreadable} {word} could not be read and stay unknown")
        return settle(document, self.results, self._written), is_comma_decimal

    def add(self, case: Case) -> None:
        """Take a finished case: one result, and one more for each rerun written inside it."""
        attributes = case.attributes
        suite = case.suite
        name = attributes.get("name", "")
        classname = attributes.get("classname", "")
        if not name and not case.parts and "name" not in attributes and "classname" not in attributes:
            self._dropped += 1
            return
        if len(name) > MAX_NAME:
            self.document.warn(f"a name of {len(name)} characters was shortened: {name[:60]!r}...")
            name = f"{name[:MAX_NAME]}...{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:12]}"
        file = attributes.get("file")
        is_pytest = suite.is_pytest or (
            file is not None and file.endswith(".py") and classname.startswith(dotted_module(file))
        )
        if is_pytest:
            # Nothing but the name of its module and class: only some of pytest's reports name the file.
            identity = TestIdentity("", "", classname, name)
        else:
            identity = identity_from_junit(suite.path, file or "", classname, name)
            if suite.browser:
                identity = replace(identity, variant=suite.browser)
        position = len(self.results)
        if position >= MAX_CASES:
            raise RejectedReportError(f"more than {MAX_CASES} results")
        time = attributes.get("time")
        duration_s = plain_seconds(time)
        if duration_s is None and time:
            if "," in time:
                self._comma_times.append((position, time))
            else:
                self._unreadable += 1
        status, state = attributes.get("status", ""), attributes.get("result", "")
        result = CaseResult(
            identity,
            state_outcome(status, state) if status or state else Outcome.PASSED,
            position,
            duration_s=duration_s,
            file=file,
            line=_line(attributes["line"]) if "line" in attributes else None,
        )
        if case.parts:
            self._add_with_parts(result, case, status, state, is_pytest=is_pytest)
            return
        self.results.append(result)
        self._written.append(
            suite.bare
            if not status and is_pytest is suite.is_pytest
            else Written(suite, is_bare=not status, is_pytest=is_pytest)
        )

    def _add_with_parts(self, result: CaseResult, case: Case, status: str, state: str, *, is_pytest: bool) -> None:
        numbers = Numbers()
        outputs: list[str] = []
        reported: list[Part] = []
        reruns: list[Part] = []
        skipped: Part | None = None
        for part in case.parts or ():
            if part.name == "property":
                numbers.add_property(part, self.document)
            elif part.name in {"system-out", "system-err"}:
                text = part.text
                numbers.add_output(text, self.document)
                outputs.append(text)
            elif part.name in {"failure", "error"}:
                reported.append(part)
            elif part.name == "skipped":
                skipped = skipped or part
            else:
                reruns.append(part)
        if reported:
            reported.sort(key=lambda part: part.name != "failure")
            outcome, failure_type, message, detail = _failure(reported, is_pytest=is_pytest)
            outcome = tolerated(tolerated(outcome, status), state)
        elif skipped is not None:
            message = skipped.attributes.get("message") or skipped.text.strip() or None
            failure_type, detail = skipped.attributes.get("type") or None, None
            outcome = skipped_outcome(failure_type or "", message or "")
        else:
            outcome = result.outcome
            failure_type = message = detail = None
        result = replace(
            result,
            outcome=outcome,
            failure_type=failure_type,
            message=message[:MAX_MESSAGE] if message else None,
            detail=detail,
            output=_tail("\n".join(text.strip("\n") for text in outputs if text.strip())),
            counters=numbers.counters,
            measurements=tuple(numbers.measurements),
        )
        own = Written(
            case.suite,
            is_bare=not reported and skipped is None and not status,
            is_pytest=is_pytest,
            is_silent_skip=skipped is not None and not message and not reported,
            has_reruns=bool(reruns),
        )
        for attempt in _attempts(result, reruns, is_pytest=is_pytest) if reruns else [result]:
            self.results.append(replace(attempt, position=len(self.results)))
            self._written.append(own)


def _attempts(result: CaseResult, reruns: Sequence[Part], *, is_pytest: bool) -> list[CaseResult]:
    """Return the attempts of a case and of its reruns in the order in which they ran.

    Maven surefire's schema 3.0 and nextest: `flaky*` are the failures before the pass that the case stands for,
    `rerun*` are those after the failure that the case stands for.
    """
    attempts: list[CaseResult] = []
    for part in reruns:
        outcome, failure_type, message, detail = _failure([part], is_pytest=is_pytest)
        trace = "".join(inner.text for inner in part.parts if inner.name == "stackTrace").strip()
        output = "\n".join(inner.text.strip("\n") for inner in part.parts if inner.name in {"system-out", "system-err"})
        attempts.append(
            replace(
                result,
                outcome=outcome,
                duration_s=plain_seconds(part.attributes.get("time")),
                failure_type=failure_type,
                message=message or (trace[:MAX_MESSAGE] or None),
                detail=_tail(trace) or detail,
                output=_tail(output),
                counters={},
                measurements=(),
            )
        )
    attempts.insert(len(attempts) if reruns[0].name.startswith("flaky") else 0, result)
    return [replace(attempt, attempt=number, repetition=Repetition.RETRY) for number, attempt in enumerate(attempts, 1)]


def _line(text: str) -> int | None:
    """Return the source line of a case, None if it is no number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _failure(reported: Sequence[Part], *, is_pytest: bool) -> tuple[Outcome, str | None, str | None, str | None]:
    """Return outcome, type, message and trace of the failures of one attempt; the first speaks for all."""
    first = reported[0]
    body = first.text.strip()
    failure_type = first.attributes.get("type", "").strip()
    message = first.attributes.get("message", "").strip()
    if message.lower() in _SAYS_NOTHING or _VALUES_ONLY.match(message) or "is NOT correct!" in body:
        message = "\n".join(_PYTEST_LINES.findall(body)) if is_pytest else body
        message = message or body or first.attributes.get("message", "")
    if is_pytest and not failure_type and body:
        found = _PYTEST_TYPE.match(body.rpartition("\n")[2])
        failure_type = found.group(1) if found else ""
    kind = "error" if first.name in {"error", "flakyError", "rerunError"} else "failure"
    outcome = failure_outcome(kind, failure_type, f"{message[:4096]}\n{body[:4096]}")
    texts = [body]
    texts += [f"{other.attributes.get('message', '').strip()}\n{other.text.strip()}".strip() for other in reported[1:]]
    detail = _tail("\n\n".join(text for text in texts if text))
    return outcome, failure_type or None, message[:MAX_MESSAGE] or None, detail


def _tail(text: str) -> str | None:
    """Return the last part of a text, where the reason usually stands; None if there is none."""
    return text[-MAX_TEXT:] or None
