"""`likewise ingest`: reports of a CI run, read and sent with the run's metadata."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from service.cli.output import AsJson, console, print_json
from service.errors import InvalidValueError
from service.ingest.document import MAX_BYTES
from service.ingest.github_actions import github_metadata, read_event
from service.ingest.payload import RunPayload, UploadedFile, metadata_of
from service.ingest.report import FileStatus
from service.ingest.summary import FileSummary, IngestSummary, summarise
from service.ingest.upload import read_run

_STYLES = {FileStatus.PARSED: "green", FileStatus.REPAIRED: "yellow", FileStatus.REJECTED: "bold red"}
_IN_FOLDERS = ("*.xml", "*.xml.gz")
# What a dry run stands in for, because nothing of it is kept.
_UNSENT: dict[str, str | int] = {"project": "nobody/nothing", "sha": "0" * 40, "run_id": "dry run"}
_PROBLEMS_SHOWN = 5
_LOG_WIDTH = 10_000

Send = Callable[[RunPayload], IngestSummary]


@dataclass(frozen=True, slots=True)
class _Found:
    """The files to read, and what was named and is not there."""

    files: tuple[UploadedFile, ...]
    missing: tuple[str, ...]


def ingest_command(send: Send, environment: Mapping[str, str]) -> Callable[..., None]:
    """Return the command. `send` stores a run, here or over HTTP; `environment` is asked for GitHub's variables."""

    def ingest(
        files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Reports, folders, or quoted patterns.")],
        project: Annotated[str | None, typer.Option(help="owner/name.")] = None,
        sha: Annotated[str | None, typer.Option(help="Commit that was tested, 40 digits.")] = None,
        branch: Annotated[str | None, typer.Option(help="Branch that was tested.")] = None,
        run_id: Annotated[str | None, typer.Option(help="The CI's id of the run.")] = None,
        attempt: Annotated[int | None, typer.Option(help="Which attempt of the run this is, from 1.")] = None,
        job: Annotated[str | None, typer.Option(help="Name of the CI job.")] = None,
        variant: Annotated[str | None, typer.Option(help="Leg of the matrix.")] = None,
        suite: Annotated[str | None, typer.Option(help="Suite of likewise.toml that ran.")] = None,
        pull_request: Annotated[int | None, typer.Option(help="Number of the pull request.")] = None,
        exit_code: Annotated[int | None, typer.Option(help="Exit code of the command that ran the tests.")] = None,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what was read; store nothing.")] = False,
        as_json: AsJson = False,
    ) -> None:
        """Record a CI run from its reports; in GitHub Actions the options have the values of the step.

        Ends with 1 when a file was rejected or breaks off; the others are kept all the same. Send the run also when the
        tests died without writing a report, with --exit-code: a lost run is no passed run.
        """
        found = _find(files)
        given: dict[str, str | int | None] = {
            "project": project,
            "sha": sha,
            "branch": branch,
            "run_id": run_id,
            "attempt": attempt,
            "job": job,
            "variant": variant,
            "suite": suite,
            "pull_request": pull_request,
            "exit_code": exit_code,
        }
        payload = _payload(found, given, environment, is_dry_run=dry_run)
        summary = summarise(read_run(payload)) if dry_run else send(payload)
        summary = replace(summary, problems=(*(f"{name}: no such file" for name in found.missing), *summary.problems))
        if as_json:
            print_json(summary)
        else:
            _show(summary, is_dry_run=dry_run)
        if not summary.is_whole or found.missing:
            raise typer.Exit(1)

    return ingest


def _find(names: Sequence[str]) -> _Found:
    """Return the files of paths, folders and patterns, each once, in order."""
    paths: dict[Path, None] = {}
    missing: list[str] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            matches = sorted(match for pattern in _IN_FOLDERS for match in path.rglob(pattern))
        elif path.exists():
            matches = [path]
        else:
            matches = sorted(match for match in map(Path, glob.glob(name, recursive=True)) if match.is_file())  # noqa: PTH207
        if not matches:
            missing.append(name)
        paths.update(dict.fromkeys(matches))
    return _Found(tuple(UploadedFile(name=str(path), content=_read(path)) for path in paths), tuple(missing))


def _read(path: Path) -> bytes:
    """Return the bytes of a file; of one that is too large no more than shows it."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidValueError("FILE", str(path), error.strerror or str(error)) from None


def _payload(
    found: _Found, given: Mapping[str, str | int | None], environment: Mapping[str, str], *, is_dry_run: bool
) -> RunPayload:
    """Return the payload: options first, then GitHub's variables, then what can be derived."""
    known: dict[str, str | int] = github_metadata(environment, read_event(environment))
    known |= {name: value for name, value in given.items() if value is not None}
    if is_dry_run:
        return RunPayload(metadata=metadata_of(**(_UNSENT | known)), files=found.files)
    if not found.files and not known.get("exit_code"):
        raise InvalidValueError(
            "FILE",
            ", ".join(found.missing),
            "no such file",
            "To record a run that wrote no report, pass its --exit-code.",
        )
    if found.files and "run_id" not in known:
        # The same files sent again are then the same run.
        digest = hashlib.sha256(b"".join(hashlib.sha256(file.content).digest() for file in found.files))
        known["run_id"] = f"files:{digest.hexdigest()[:16]}"
    for name in ("project", "sha", "run_id"):
        if name not in known:
            option = f"--{name.replace('_', '-')}"
            raise InvalidValueError(name, "missing", f"{option} is needed outside of GitHub Actions", f"Pass {option}.")
    return RunPayload(metadata=metadata_of(**known), files=found.files)


def _show(summary: IngestSummary, *, is_dry_run: bool) -> None:
    """Print the table of files, the worst first, and what came of the run."""
    out = console()
    if not out.is_terminal:
        # A log has no width to fit, and a name broken over lines helps nobody.
        out.width = _LOG_WIDTH
    table = Table(box=None, pad_edge=False)
    for heading in ("file", "status", "tests", "outcomes", "remarks"):
        table.add_column(heading, justify="right" if heading == "tests" else "left", overflow="fold")
    for file in summary.files:
        table.add_row(
            Text(file.name),
            Text(file.status.value, style=_STYLES[file.status]),
            str(file.tests),
            Text(_outcomes(file.outcomes)),
            Text(_remarks(file)),
        )
    out.print(table)
    for problem in summary.problems:
        out.print(problem, markup=False)
    out.print(
        f"run {summary.status.value}: {summary.tests} results, {_outcomes(summary.outcomes) or 'none'}", markup=False
    )
    if is_dry_run:
        out.print("dry run: nothing was stored")
    elif not summary.is_new:
        out.print(f"run {summary.run} had been recorded before; nothing changed", markup=False)
    else:
        out.print(f"recorded as run {summary.run} {summary.url or ''}".rstrip(), markup=False)


def _outcomes(outcomes: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in outcomes.items())


def _remarks(file: FileSummary) -> str:
    shown = list(file.problems[:_PROBLEMS_SHOWN])
    more = len(file.problems) - len(shown)
    return "\n".join([*shown, f"and {more} more"] if more else shown)
