"""What a report says, independent of its format."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gpu_runner.protocol import Measurement, Outcome
from service.domain import FAILING
from service.ingest.identity import TestIdentity
from service.signature import failure_signature


class FileStatus(StrEnum):
    """How a file was taken: as it stands, after changes that its problems name, or not at all."""

    PARSED = "parsed"
    REPAIRED = "repaired"
    REJECTED = "rejected"


class Repetition(StrEnum):
    """Why one test has several results in a run.

    `RETRY`: run again because it failed. `REPEAT`: run again anyway. `ROW`: another row of data under the same name,
    which is a test of its own.
    """

    SINGLE = "single"
    RETRY = "retry"
    REPEAT = "repeat"
    ROW = "row"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a file that a person should know; line and column count from 1, None where no place applies."""

    message: str
    line: int | None = None
    column: int | None = None

    @property
    def place(self) -> str:
        """Return `line:column`, or the empty string."""
        return "" if self.line is None else f"{self.line}:{self.column}"

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A producer's time: `at` is UTC, None if unreadable; without a known zone it was read as if it were UTC."""

    raw: str
    at: datetime | None
    is_zone_known: bool


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One attempt of one test as the file tells it.

    `position` counts from 0 in the order of the file, all attempts included. `message` is the framework's own words,
    `detail` its trace, `output` the tail of what the test printed. `is_inferred`: the outcome is not written but
    follows from the shape of the report, such as a bare case before the retry that failed.
    """

    identity: TestIdentity
    outcome: Outcome
    position: int
    attempt: int = 1
    repetition: Repetition = Repetition.SINGLE
    is_inferred: bool = False
    duration_s: float | None = None
    failure_type: str | None = None
    message: str | None = None
    detail: str | None = None
    output: str | None = None
    file: str | None = None
    line: int | None = None
    counters: dict[str, int] = field(default_factory=dict)
    measurements: tuple[Measurement, ...] = ()

    @property
    def log(self) -> str | None:
        """Return trace and output as one text, None when there is neither."""
        return "\n".join(text for text in (self.detail, self.output) if text) or None

    @property
    def signature(self) -> str:
        """Return the failure's signature; empty when the case did not fail."""
        return failure_signature(self.outcome, self.failure_type, self.message or self.detail)


@dataclass(frozen=True, slots=True)
class ReportFile:
    """One file of an upload. A rejected file has no cases; `problems` then say why and where.

    `is_complete` is False when the file was cut off or declares more tests than it holds: its run is partial. `suites`
    identify what was reported, to recognise the same suite uploaded twice.
    """

    name: str
    format: str
    status: FileStatus
    digest: str
    size_bytes: int
    cases: tuple[CaseResult, ...] = ()
    problems: tuple[Problem, ...] = ()
    is_complete: bool = True
    is_cut: bool = False
    started: Timestamp | None = None
    duration_s: float | None = None
    counters: dict[str, int] = field(default_factory=dict)
    measurements: tuple[Measurement, ...] = ()

    @property
    def outcomes(self) -> Counter[Outcome]:
        """Return how many cases came to each outcome."""
        return Counter(case.outcome for case in self.cases)

    @property
    def failing(self) -> int:
        """Return the number of cases that failed in any way."""
        return sum(case.outcome in FAILING for case in self.cases)

    @property
    def badness(self) -> tuple[int, int, int]:
        """Return a key that sorts the worst file first: rejected, cut off, failing, with problems, fine."""
        level = 0 if self.status is FileStatus.REJECTED else 1 if self.is_cut else 2 if self.failing else 3
        return level, -self.failing, -len(self.problems)


class RejectedReportError(Exception):
    """A file cannot be read as a report; `problem` says why and where."""

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        self.problem = Problem(message, line, column)
        super().__init__(str(self.problem))
