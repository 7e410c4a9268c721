"""The answer to an upload: what became of each file, worst first."""

from __future__ import annotations

from dataclasses import dataclass

from service.domain import RunStatus
from service.ingest.report import FileStatus, ReportFile
from service.ingest.upload import RunReport


@dataclass(frozen=True, slots=True)
class FileSummary:
    """One file: `tests` counts results, attempts included; `outcomes` only names those that occur."""

    name: str
    format: str
    status: FileStatus
    is_complete: bool
    is_cut: bool
    tests: int
    outcomes: dict[str, int]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IngestSummary:
    """What was read, and stored unless it was only tried: `run` and `url` are then set.

    `is_new` is False when the run had been sent before, so that nothing changed.
    """

    status: RunStatus
    tests: int
    outcomes: dict[str, int]
    files: tuple[FileSummary, ...]
    problems: tuple[str, ...] = ()
    run: str | None = None
    url: str | None = None
    is_new: bool = True

    @property
    def is_whole(self) -> bool:
        """Return whether every file was read to its end."""
        return not any(file.status is FileStatus.REJECTED or file.is_cut for file in self.files)


def summarise(
    report: RunReport, *, run: str | None = None, url: str | None = None, is_new: bool = True
) -> IngestSummary:
    """Return the summary of a run that was read and, where `run` is given, stored under that name."""
    return IngestSummary(
        status=report.status,
        tests=len(report.cases),
        outcomes={outcome.value: count for outcome, count in sorted(report.outcomes.items())},
        files=tuple(_file_summary(file) for file in sorted(report.files, key=lambda file: file.badness)),
        problems=tuple(str(problem) for problem in report.problems),
        run=run,
        url=url,
        is_new=is_new,
    )


def _file_summary(file: ReportFile) -> FileSummary:
    return FileSummary(
        name=file.name,
        format=file.format,
        status=file.status,
        is_complete=file.is_complete,
        is_cut=file.is_cut,
        tests=len(file.cases),
        outcomes={outcome.value: count for outcome, count in sorted(file.outcomes.items())},
        problems=tuple(str(problem) for problem in file.problems),
    )
