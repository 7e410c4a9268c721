"""`likewise enqueue`: ask for an experiment."""

from __future__ import annotations

import getpass
import re
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from gpu_runner.protocol import CacheState, TestsMode
from service.cli.output import AsJson, console, print_json
from service.domain import Origin
from service.enqueue import AbOrder, make_request
from service.enqueue import enqueue as store
from service.errors import BrokerUnavailableError, InvalidValueError
from service.experiments.treatments import describe
from service.history.durations import mean_execution_seconds
from service.queue import flush
from service.stats.power import largest_detectable_rate
from service.store import schema
from service.store.experiments import Request
from service.store.session import read

app = typer.Typer(help="Ask for an experiment.", no_args_is_help=True)

SHOWN_RATES = (0.65, 0.3, 0.1)


@app.callback()
def _group() -> None:
    """Ask for an experiment."""


@app.command()
def ab(
    victim: Annotated[str, typer.Option(help="The test whose failure is to be explained.")],
    treat: Annotated[list[str], typer.Option(help="A treated arm, e.g. exclude:TEST; repeatable.")],
    project: Annotated[str | None, typer.Option(help="owner/name; not needed when there is one.")] = None,
    suite: Annotated[str | None, typer.Option(help="Name in likewise.toml.")] = None,
    control: Annotated[
        str | None, typer.Option(help="Treatments of the control, e.g. alone. Default: full suite.")
    ] = None,
    commit: Annotated[str, typer.Option(help="Revision of all arms.")] = "HEAD",
    signature: Annotated[
        str | None, typer.Option(help='Failure that counts, or "any". Default: found by probes.')
    ] = None,
    blocks: Annotated[int | None, typer.Option(help="Most blocks, 1 to 100. Default 30, or from --history.")] = None,
    history: Annotated[str | None, typer.Option(help="Failures of runs seen in CI, e.g. 13/20.")] = None,
    seed: Annotated[int | None, typer.Option(help="Repeats an experiment's chance.")] = None,
    tests: Annotated[
        TestsMode, typer.Option(help="Tests that some arm lacks: left out, or part of it.")
    ] = TestsMode.INTERSECT,
    cache: Annotated[CacheState, typer.Option(help="Caches at the start of an execution.")] = CacheState.COLD,
    budget: Annotated[int | None, typer.Option(help="Most executions, of all arms together.")] = None,
    compound: Annotated[bool, typer.Option("--compound", help="Declare several differences as one treatment.")] = False,
    suite_file: Annotated[Path | None, typer.Option(help="A likewise.toml elsewhere.")] = None,
    priority: Annotated[int, typer.Option(help="Smaller is sooner.")] = 100,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show arms, blocks, minutes, effect; store nothing.")
    ] = False,
    detached: Annotated[bool, typer.Option("--detached", help="To be run elsewhere: see `plan export`.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Watch it until its verdict.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare arms of the same suite in the same context, exactly one thing changed."""
    schema.upgrade()
    order = AbOrder(
        victim=victim,
        treat=tuple(treat),
        project=project,
        suite=suite,
        control=control,
        commit=commit,
        signature=signature,
        blocks=blocks,
        seed=seed,
        tests_mode=tests,
        cache_state=cache,
        budget_executions=budget,
        history=_fraction(history) if history else None,
        is_compound=compound,
        is_detached=detached,
        priority=priority,
        suite_file=suite_file,
    )
    request = make_request(order, Origin.CLI, getpass.getuser())
    if dry_run:
        _show_plan(request, as_json=as_json)
        return
    number = store(request)
    kept = "" if detached else _send()
    if as_json:
        print_json({"experiment": number, "seed": request.design.seed, "kept": kept})
    else:
        console().print(f"experiment {number} is enqueued, seed {request.design.seed}{kept}", markup=False)
        following = f"likewise plan export {number} > plan.jsonl" if detached else f"likewise watch {number}"
        console().print(f"next: {following}", markup=False)
    if watch:
        from service.cli.experiments import follow

        follow(number)


def _send() -> str:
    try:
        flush()
    except BrokerUnavailableError as error:
        print(f"{error} {error.remedy}", file=sys.stderr)
        return " (kept: it starts when the broker answers; `likewise up` starts everything)"
    return ""


def _fraction(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or int(match[1]) > int(match[2]):
        raise InvalidValueError("history", text, "not failures of runs", "Write for instance 13/20.")
    return int(match[1]), int(match[2])


def _show_plan(request: Request, *, as_json: bool) -> None:
    design = request.design
    with read() as session:
        seconds = mean_execution_seconds(session, design.project, design.suite)
    executions = design.blocks_max * len(design.arms)
    effects = {
        rate: largest_detectable_rate(design.blocks_max, rate, design.alpha / len(design.treated))
        for rate in SHOWN_RATES
    }
    if as_json:
        print_json(
            {
                "design": design,
                "executions_at_most": executions,
                "minutes_at_most": None if seconds is None else executions * seconds / 60,
                "detectable": {str(rate): treated for rate, treated in effects.items()},
            }
        )
        return
    out = console()
    table = Table("arm", "role", "commit", "what", box=None, pad_edge=False)
    for arm in design.arms:
        table.add_row(str(arm.index), arm.role.value, arm.commit[:12], describe(arm.treatments))
    out.print(table)
    out.print(f"at most {design.blocks_max} blocks of {len(design.arms)} executions: {executions} executions")
    if seconds is None:
        out.print("minutes: unknown until this suite has run once")
    else:
        out.print(f"at most {executions * seconds / 60:.0f} minutes at {seconds:.1f} s an execution")
    for rate, treated in effects.items():
        if treated is None:
            out.print(f"  a control that fails {rate:.0%} of the time: not settled with power 0.9, even by a full cure")
        else:
            out.print(f"  a control that fails {rate:.0%}: told apart from {treated:.0%} or less with power 0.9")
