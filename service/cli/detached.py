"""Evidence that travels: bundle and replay, plan export and evidence import for boxes without a network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from service.cli.output import VERDICT_STYLES, AsJson, console, exit_with, print_json
from service.cli.setup import tree_hash_of
from service.detached import Imported, export_plan, import_evidence, read_bundle, write_bundle
from service.errors import InvalidValueError
from service.experiments.model import Conclude
from service.experiments.registry import next_step
from service.store import schema
from service.store.experiments import design_of, get
from service.store.session import read

plan_app = typer.Typer(help="Plans to run elsewhere.", no_args_is_help=True)
evidence_app = typer.Typer(help="Evidence that was gathered elsewhere.", no_args_is_help=True)

Number = Annotated[int, typer.Argument(help="Number of the experiment.")]


def bundle(
    number: Number,
    output: Annotated[Path | None, typer.Option(help="File to write; experiment-N.zip by default.")] = None,
) -> None:
    """Write an experiment's evidence, logs and commands into one zip file that replays to the same finding."""
    path = output or Path(f"experiment-{number}.zip")
    write_bundle(number, path)
    console().print(f"wrote {path}; `likewise replay {path}` judges it again", markup=False)


def replay(file: Annotated[Path, typer.Argument(help="A bundle.")], as_json: AsJson = False) -> None:
    """Judge a bundle's evidence again and compare with the finding that it carries. Needs no server."""
    stored = read_bundle(file)
    step = next_step(stored.kind, stored.design, stored.evidence)
    if not isinstance(step, Conclude):
        raise InvalidValueError("bundle", str(file), "its evidence does not end in a finding")
    is_same = stored.finding == step.finding
    if as_json:
        print_json({"same": is_same, "finding": step.finding})
    else:
        out = console()
        out.print(Text(step.finding.verdict.value, VERDICT_STYLES.get(step.finding.verdict, "bold")))
        out.print(step.finding.sentence, markup=False)
        out.print("the same finding as in the bundle" if is_same else "NOT the finding in the bundle")
    if not is_same:
        raise typer.Exit(1)
    raise exit_with(step.finding.verdict)


@plan_app.command("export")
def plan_export(
    number: Number, blocks: Annotated[int | None, typer.Option(help="Fewer blocks than the most.")] = None
) -> None:
    """Print an experiment's plan as JSON lines, for `python -m gpu_runner batch`."""
    with read() as session:
        experiment = get(session, number)
        source, commit = experiment.source, design_of(experiment).control.commit
    for line in export_plan(number, tree_hash_of(source, commit), blocks):
        sys.stdout.write(line)


@evidence_app.command("import")
def evidence_import(
    file: Annotated[Path, typer.Argument(help="What the batch printed.")], as_json: AsJson = False
) -> None:
    """Take in evidence, once, bound to its plan; then judge it."""
    schema.upgrade()
    done: Imported = import_evidence(file)
    if as_json:
        print_json(done)
    else:
        console().print(
            f"experiment {done.experiment}: {done.executions} executions in {done.blocks} blocks", markup=False
        )
        if done.finding is None:
            console().print("not yet decided: export the plan again with more blocks, or let workers go on")
        else:
            console().print(Text(done.finding.verdict.value, VERDICT_STYLES.get(done.finding.verdict, "bold")))
            console().print(done.finding.sentence, markup=False)
    if done.finding is not None:
        raise exit_with(done.finding.verdict)
