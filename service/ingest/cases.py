"""From a case as it is written to its results: outcome, words of the failure, output, one result an attempt."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_runner.protocol import Outcome
from service.ingest.document import Document
from service.ingest.durations import seconds
from service.ingest.events import Numbers
from service.ingest.identity import dotted_module, identity_from_junit
from service.ingest.outcomes import failure_outcome, skipped_outcome, state_outcome, tolerated
from service.ingest.repeats import Written, settle
from service.ingest.report import CaseResult, Repetition

MAX_NAME = 2_000
MAX_MESSAGE = 16_000
MAX_TEXT = 64_000

# Playwright and the like write the project, which is a browser, where others write the machine.
_BROWSERS = re.compile(r"^(?:chromium|firefox|webkit|chrome|msedge|(?:Mobile|Google|Microsoft|Desktop) \w+)$", re.IGNORECASE)
_STRESS = re.compile(r"@stress-\d+$")
_PYTEST_SUITES = frozenset({"pytest", "pytest tests"})
_PYTEST_TYPE = re.compile(r"^\S.*:\d+: ([A-Za-z_][\w.]*)\s*$")


@dataclass(slots=True)
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

    @classmethod
    def of(cls, attributes: dict[str, str], parent: Suite | None, *, is_container: bool) -> Suite:
        """Return the suite of an element. A container, such as the root, adds nothing to the path."""
        name = attributes.get("name", "").strip()
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


def case_results(document: Document, cases: Sequence[Case], *, is_comma_decimal: bool | None) -> list[CaseResult]:
    """Return the results of the cases in order, attempts told apart from rows and repeats."""
    results: list[CaseResult] = []
    written: list[Written] = []
    dropped = unreadable = 0
    for case in cases:
        attributes = case.attributes
        if not case.parts and "name" not in attributes and "classname" not in attributes:
            dropped += 1
            continue
        time = attributes.get("time")
        duration_s = seconds(time, is_comma_decimal=is_comma_decimal)
        unreadable += duration_s is None and bool(time)
        _append(document, case, duration_s, results, written)
    if dropped:
        document.warn(f"{dropped} case{'s' if dropped > 1 else ''} without a name and without a result dropped")
    if unreadable:
        document.warn(f"{unreadable} duration{'s' if unreadable > 1 else ''} could not be read and stay unknown")
    return settle(document, results, written)


def _append(
    document: Document, case: Case, duration_s: float | None, results: list[CaseResult], written: list[Written]
) -> None:
    """Append the results of one case: its own, and before or after it those of the reruns written inside it."""
    attributes = case.attributes
    suite = case.suite
    name = attributes.get("name", "")
    classname = attributes.get("classname", "")
    file = attributes.get("file", "")
    if len(name) > MAX_NAME:
        name = f"{name[:MAX_NAME]}...{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:12]}"
        document.warn(f"a name of {len(attributes['name'])} characters was shortened: {name[:60]!r}...")
    is_pytest = suite.is_pytest or (file.endswith(".py") and classname.startswith(dotted_module(file)))
    identity = identity_from_junit(suite.path, file, classname, name, is_pytest=is_pytest)
    line = attributes.get("line", "")
    source_line = int(line) if line.isascii() and line.isdigit() and len(line) < 10 else None
    parts = case.parts
    status, state = attributes.get("status", ""), attributes.get("result", "")
    if not parts:
        results.append(
            CaseResult(
                identity,
                state_outcome(status, state) if status or state else Outcome.PASSED,
                len(results),
                duration_s=duration_s,
                file=file or None,
                line=source_line,
            )
        )
        written.append(Written(suite, is_bare=not status, is_pytest=is_pytest))
        return

    numbers = Numbers()
    outputs: list[str] = []
    reported: list[Part] = []
    reruns: list[Part] = []
    skipped: Part | None = None
    for part in parts:
        if part.name == "property":
            numbers.add_property(part, document)
        elif part.name in {"system-out", "system-err"}:
            text = part.text
            numbers.add_output(text, document)
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
        outcome = state_outcome(status, state) if status or state else Outcome.PASSED
        failure_type = message = detail = None
    result = CaseResult(
        identity,
        outcome,
        len(results),
        duration_s=duration_s,
        failure_type=failure_type,
        message=message[:MAX_MESSAGE] if message else None,
        detail=detail,
        output=_tail("\n".join(text.strip("\n") for text in outputs if text.strip())),
        file=file or None,
        line=source_line,
        counters=numbers.counters,
        measurements=tuple(numbers.measurements),
    )
    own = Written(
        suite,
        is_bare=not reported and skipped is None and not status,
        is_pytest=is_pytest,
        is_silent_skip=skipped is not None and not message and not reported,
        has_reruns=bool(reruns),
    )
    if not reruns:
        results.append(result)
        written.append(own)
        return
    _append_with_reruns(result, own, reruns, results, written, is_pytest=is_pytest)


def _append_with_reruns(
    result: CaseResult,
    own: Written,
    reruns: Sequence[Part],
    results: list[CaseResult],
    written: list[Written],
    *,
    is_pytest: bool,
) -> None:
    """Append a case and its reruns in the order of the attempts.

    Maven surefire's schema 3.0 and nextest: `flaky*` are the failures before the pass that the case stands for,
    `rerun*` are those after the failure that the case stands for.
    """
    attempts: list[CaseResult] = []
    for part in reruns:
        outcome, failure_type, message, detail = _failure([part], is_pytest=is_pytest)
        trace = "".join(inner.text for inner in part.parts if inner.name == "stackTrace").strip()
        output = "\n".join(inner.text.strip("\n") for inner in part.parts if inner.name in {"system-out", "system-err"})
        attempts.append(
            CaseResult(
                result.identity,
                outcome,
                0,
                duration_s=seconds(part.attributes.get("time"), is_comma_decimal=None),
                failure_type=failure_type,
                message=message or (trace[:MAX_MESSAGE] or None),
                detail=_tail(trace) or detail,
                output=_tail(output),
                file=result.file,
                line=result.line,
            )
        )
    at = len(attempts) if reruns[0].name.startswith("flaky") else 0
    attempts.insert(at, result)
    for number, attempt in enumerate(attempts, 1):
        results.append(
            CaseResult(
                attempt.identity, attempt.outcome, len(results), number, Repetition.RETRY, False, attempt.duration_s,
                attempt.failure_type, attempt.message, attempt.detail, attempt.output, attempt.file, attempt.line,
                attempt.counters, attempt.measurements,
            )
        )  # fmt: skip
        written.append(own)


def _failure(reported: Sequence[Part], *, is_pytest: bool) -> tuple[Outcome, str | None, str | None, str | None]:
    """Return outcome, type, message and trace of the failures of one attempt; the first speaks for all."""
    first = reported[0]
    body = first.text.strip()
    failure_type = first.attributes.get("type", "").strip()
    message = first.attributes.get("message", "").strip() or body
    if is_pytest and not failure_type and body:
        found = _PYTEST_TYPE.match(body.rpartition("\n")[2])
        failure_type = found.group(1) if found else ""
    kind = "error" if first.name in {"error", "flakyError", "rerunError"} else "failure"
    outcome = failure_outcome(kind, failure_type, message)
    texts = [body]
    for other in reported[1:]:
        texts.append(f"{other.attributes.get('message', '').strip()}\n{other.text.strip()}".strip())
    detail = _tail("\n\n".join(text for text in texts if text))
    return outcome, failure_type or None, message[:MAX_MESSAGE] or None, detail


def _tail(text: str) -> str | None:
    """Return the last part of a text, where the reason usually stands; None if there is none."""
    return text[-MAX_TEXT:] or None
