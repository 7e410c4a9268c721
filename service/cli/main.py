"""All commands on one Typer app, with one place that turns errors into a sentence, a way out and an exit code."""

from __future__ import annotations

import json
import os
import sys

import typer
from rich.console import Console
from typer._click.exceptions import ClickException  # typer has its own copy of click and exports no base class

from service.cli import demo, detached, enqueue, experiments, operate, setup, statistics, threshold
from service.cli.ingest import ingest_command
from service.errors import LikewiseError
from service.ingest.payload import RunPayload
from service.ingest.summary import IngestSummary
from service.record import record_upload
from service.store import schema


def _record(payload: RunPayload) -> IngestSummary:
    schema.upgrade()
    return record_upload(payload).summary


app = typer.Typer(
    name="likewise",
    help="Same-context A/B experiments for tests that fail in the suite and pass alone.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.command()(setup.init)
app.command()(setup.doctor)
app.command()(operate.up)
app.command()(operate.serve)
app.command()(operate.worker)
app.command()(demo.demo)
app.add_typer(setup.project_app, name="project")
app.add_typer(setup.suite_app, name="suite")
app.add_typer(setup.db_app, name="db")
app.add_typer(setup.token_app, name="token")
app.add_typer(enqueue.app, name="enqueue")
app.command(name="list")(experiments.list_experiments)
app.command()(experiments.show)
app.command()(experiments.watch)
app.command()(experiments.cancel)
app.command()(detached.bundle)
app.command()(detached.replay)
app.add_typer(detached.plan_app, name="plan")
app.add_typer(detached.evidence_app, name="evidence")
app.add_typer(experiments.context_app, name="context")
app.command()(ingest_command(_record, os.environ))
app.command()(statistics.compare)
app.command()(statistics.power)
app.command()(threshold.threshold)


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 error, 2 usage, 3 could not tell, 4 the answer is no."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        code = app(args=given, standalone_mode=False)
    except LikewiseError as error:
        _tell(error, as_json="--json" in given)
        return error.exit_code
    except typer.Exit as stop:
        return stop.exit_code
    except ClickException as error:
        error.show()
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # Whoever read, for instance `head`, has enough; a flush at the end must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        _tell(_HostError(path=error.filename, detail=error.strerror or str(error)), as_json="--json" in given)
        return 1
    return code if isinstance(code, int) else 0


class _HostError(LikewiseError):
    """{path!r} cannot be used: {detail}."""

    code = "host_failed"
    way_out = "Check the path, its permissions and the free space."


def _tell(error: LikewiseError, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"error": error.code, "message": str(error), "way_out": error.remedy}))
        return
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"error: {error}", style="bold red", markup=False)
    if error.remedy:
        console.print(f"  {error.remedy}", markup=False)
