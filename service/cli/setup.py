"""Setting up: init, project, suite check, database, tokens, doctor."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from gpu_runner.protocol import ArmJob, Failure, PreparedArm, PrepareJob, read_line, write_line
from service.cli.output import AsJson, console, print_json
from service.config import settings
from service.enqueue import SUITE_FILE, ensure_project, read_definition, resolve_commit
from service.errors import ConflictError, InvalidValueError, LikewiseError
from service.queue import ping
from service.store import schema
from service.store.catalog import get_project, only_project
from service.store.session import engine, read, write
from service.store.tokens import Scope, create_token

project_app = typer.Typer(help="Repositories whose CI is recorded.", no_args_is_help=True)
suite_app = typer.Typer(help="Sets of tests.", no_args_is_help=True)
db_app = typer.Typer(help="The database.", no_args_is_help=True)
token_app = typer.Typer(help="Bearer tokens of the REST interface.", no_args_is_help=True)

LISTED = 10


def init(
    folder: Annotated[Path, typer.Argument(help="The repository under test.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing likewise.toml.")] = False,
) -> None:
    """Find ctest or pytest in a repository and write its likewise.toml."""
    target = folder / SUITE_FILE
    if target.exists() and not force:
        raise ConflictError(f"{target} exists already", "`--force` replaces it.")
    text = _guess(folder)
    target.write_text(text, encoding="utf-8")
    out = console()
    out.print(f"wrote {target}", markup=False)
    out.print(text, markup=False)
    out.print("Next: commit it, then `likewise project add OWNER/NAME --source .` and `likewise suite check`.")


def _guess(folder: Path) -> str:
    if (folder / "CMakeLists.txt").exists():
        return (
            '[suites.default]\nframework = "ctest"\nbuild = ["cmake -S . -B build", "cmake --build build"]\n'
            'test_dir = "build"\ntimeout = "90m"\ntest_timeout = "10m"\n'
        )
    names = ("pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg", "conftest.py", "tests")
    if any((folder / name).exists() for name in names):
        paths = '["tests"]' if (folder / "tests").is_dir() else "[]"
        return f'[suites.default]\nframework = "pytest"\npaths = {paths}\ntimeout = "90m"\ntest_timeout = "10m"\n'
    hint = "Write likewise.toml by hand: the README has a table of its keys."
    raise InvalidValueError("folder", str(folder), "neither CMakeLists.txt nor a pytest project", hint)


@project_app.command("add")
def project_add(
    name: Annotated[str, typer.Argument(help="owner/name")],
    source: Annotated[str, typer.Option(help="Path or URL of the git repository.")] = ".",
) -> None:
    """Add a project, or change its source."""
    schema.upgrade()
    is_path = "://" not in source and not source.startswith("git@")
    where = str(Path(source).resolve()) if is_path else source
    resolve_commit(where, "HEAD")
    ensure_project(name, where)
    console().print(f"project {name} is recorded, source {where}", markup=False)


@suite_app.command("check")
def suite_check(
    project: Annotated[str | None, typer.Option(help="owner/name; not needed when there is one.")] = None,
    suite: Annotated[str | None, typer.Option(help="Name in likewise.toml; not needed when there is one.")] = None,
    commit: Annotated[str, typer.Option(help="Revision to check out.")] = "HEAD",
    as_json: AsJson = False,
) -> None:
    """Check out, build and list a suite with the runner, as an experiment would."""
    with read() as session:
        found = get_project(session, project) if project else only_project(session)
        source = found.source
    if source is None:
        raise InvalidValueError("project", found.name, "it has no source", "`likewise project add` sets it.")
    definition = read_definition(source, suite)
    folder = settings().home / "check"
    arm = ArmJob(0, "check", resolve_commit(source, commit))
    prepared = run_prepare(PrepareJob(source, str(folder), definition, (arm,), victim=""))
    if as_json:
        print_json(prepared)
    else:
        tests = prepared.listing
        console().print(f"suite {definition.name}: {len(tests)} tests at {arm.commit[:12]}", markup=False)
        for test in tests[:LISTED]:
            console().print(f"  {test}", markup=False)
        if len(tests) > LISTED:
            console().print(f"  and {len(tests) - LISTED} more")


def run_prepare(job: PrepareJob) -> PreparedArm:
    """Return what the runner found out about the single arm of a job."""
    with tempfile.TemporaryFile("w+") as job_file:
        job_file.write(write_line(job))
        job_file.seek(0)
        command = [sys.executable, "-m", "gpu_runner", "run"]
        done = subprocess.run(command, stdin=job_file, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        message = read_line(line)
        if isinstance(message, PreparedArm):
            if message.error is not None:
                raise _SuiteError(message.error_code or "error", message.error)
            return message
        if isinstance(message, Failure):
            raise _SuiteError(message.code, f"{message.message} {message.way_out}".strip())
    raise _SuiteError("runner", done.stderr.strip()[-400:] or f"the runner ended with code {done.returncode}")


def tree_hash_of(source: str, commit: str) -> str:
    """Return the hash of the files of a commit, that detached plans hold their tree to."""
    with tempfile.TemporaryDirectory() as folder:
        for command in (
            ["git", "clone", "--quiet", "--no-checkout", source, folder],
            ["git", "-C", folder, "checkout", "--quiet", "--detach", commit],
            [sys.executable, "-m", "gpu_runner", "hash", folder],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise _SuiteError("no tree", done.stderr.strip() or f"{command[0]} ended with code {done.returncode}")
    return done.stdout.strip()


class _SuiteError(LikewiseError):
    """The suite cannot be listed ({reason}): {detail}."""

    code = "suite"

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason=reason, detail=detail.rstrip("."))


@db_app.command("upgrade")
def db_upgrade() -> None:
    """Bring the database to the newest schema."""
    console().print(f"database is at revision {schema.upgrade()}")


@token_app.command("create")
def token_create(
    name: Annotated[str, typer.Argument(help="Who will use it.")],
    scope: Annotated[list[Scope], typer.Option(help="Repeatable: ingest, read, enqueue, admin.")],
) -> None:
    """Print a new token once; only its hash is stored."""
    schema.upgrade()
    with write() as session:
        text = create_token(session, name, scope, datetime.now(UTC))
    print(text)


def doctor(as_json: AsJson = False) -> None:
    """Check what this machine has: folder, database, broker, and what the runner needs."""
    rows = [_check("state folder", _home), _check("database", _database), _check("broker", _broker)]
    done = subprocess.run(
        [sys.executable, "-m", "gpu_runner", "doctor", "--json"], capture_output=True, text=True, check=False
    )
    rows += _runner_rows(done)
    if as_json:
        print_json(rows)
    else:
        table = Table("", "what", "found", "way out", box=None, pad_edge=False)
        for row in rows:
            table.add_row("ok" if row["ok"] else "!!", row["what"], row["found"], row["way_out"])
        console().print(table)
    if not all(row["ok"] for row in rows if row["needed"]):
        raise typer.Exit(1)


def _runner_rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    try:
        checks = json.loads(done.stdout)
    except json.JSONDecodeError:
        found = done.stderr.strip()[-200:] or f"exit code {done.returncode}"
        return [{"what": "runner", "ok": False, "needed": True, "found": found, "way_out": "Install Likewise again."}]
    return [
        {
            "what": str(check["name"]),
            "ok": bool(check["is_ok"]),
            "needed": bool(check["is_needed"]),
            "found": str(check["found"]),
            "way_out": str(check["way_out"]),
        }
        for check in checks
    ]


def _check(what: str, look: Any) -> dict[str, Any]:
    try:
        return {"what": what, "ok": True, "needed": what != "broker", "found": look(), "way_out": ""}
    except LikewiseError as error:
        return {"what": what, "ok": False, "needed": what != "broker", "found": str(error), "way_out": error.remedy}


def _home() -> str:
    from service.up import check_home

    check_home(settings().home)
    return str(settings().home)


def _database() -> str:
    revision = schema.current()
    shown = engine().url.render_as_string(hide_password=True)
    if revision != schema.head():
        raise ConflictError(f"{shown} is at revision {revision}, the code at {schema.head()}", "`likewise db upgrade`")
    return f"{shown} at revision {revision}"


def _broker() -> str:
    return f"{settings().effective_broker_url} answers in {1000 * ping():.0f} ms"
