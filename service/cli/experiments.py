"""Reading experiments: list, show, watch, context diff; and cancelling one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from sqlalchemy import select

from service.cli.output import VERDICT_STYLES, AsJson, console, exit_with, print_json
from service.config import settings
from service.domain import Purpose, Verdict
from service.errors import BrokerUnavailableError, InvalidValueError
from service.experiments import contexts
from service.experiments.explain import fraction, limits, short
from service.experiments.model import Finding
from service.experiments.treatments import declared_fields
from service.history.progress import CellState, Comparison, ExperimentView, Running, experiment_view
from service.queue import flush
from service.store.evidence import context_of, executions_of, latest_finding
from service.store.experiments import cancel as cancel_experiment
from service.store.experiments import design_of, get
from service.store.models import Experiment
from service.store.session import read, write

context_app = typer.Typer(help="The context of executions.", no_args_is_help=True)

Number = Annotated[int, typer.Argument(help="Number of the experiment.")]
POLL_S = 0.5
LISTED = 30
BAR = 24
SIDE_TABLE_P = 0.05
SIDE_TABLE_ROWS = 5
MARKS = {
    CellState.MATCH: ("#", "red"),
    CellState.CLEAN: (".", "green"),
    CellState.OTHER: ("?", "magenta"),
    CellState.VOID: ("x", "dim"),
    CellState.DONE: ("+", "cyan"),
    CellState.RUNNING: (">", "cyan"),
    CellState.PENDING: ("_", "dim"),
}


def list_experiments(
    count: Annotated[int, typer.Option(help="How many, newest first.")] = LISTED, as_json: AsJson = False
) -> None:
    """List experiments, newest first."""
    rows: list[dict[str, Any]] = []
    with read() as session:
        for experiment in session.scalars(select(Experiment).order_by(Experiment.id.desc()).limit(count)):
            finding = latest_finding(session, experiment.id)
            rows.append(
                {
                    "experiment": experiment.id,
                    "kind": experiment.kind,
                    "victim": experiment.victim,
                    "state": experiment.state,
                    "verdict": finding.verdict.value if finding else None,
                    "sentence": finding.sentence if finding else None,
                    "created_at": experiment.created_at.isoformat(),
                }
            )
    if as_json:
        print_json(rows)
        return
    table = Table("no", "kind", "victim", "state", "verdict", "finding", box=None, pad_edge=False)
    for row in rows:
        style = VERDICT_STYLES.get(Verdict(row["verdict"]), "") if row["verdict"] else ""
        verdict = Text(row["verdict"] or "", style)
        sentence = Text(row["sentence"] or "", no_wrap=True, overflow="ellipsis")
        table.add_row(str(row["experiment"]), row["kind"], Text(row["victim"]), row["state"], verdict, sentence)
    console().print(table if rows else "no experiments yet: `likewise enqueue ab` asks for one")


def show(number: Number, as_json: AsJson = False) -> None:
    """Show an experiment: its arms, counts, verdict and explanations."""
    with read() as session:
        view = experiment_view(session, number)
    if as_json:
        print_json(view)
    else:
        console().print(render(view))
    if view.finding is not None:
        raise exit_with(view.finding.verdict)


def watch(number: Number) -> None:
    """Watch an experiment until its verdict; Ctrl-C stops watching, not the experiment."""
    follow(number)


def follow(number: int) -> None:
    """Show progress until the finding, then the finding; the exit code is the verdict's."""
    finding = wait_for(number, lambda: None)
    if finding is not None:
        raise exit_with(finding.verdict)


def wait_for(number: int, between: Callable[[], object]) -> Finding | None:
    """Return the finding once there is one; call `between` at every look. None when it will not come by itself."""
    out = console()
    if not out.is_terminal:
        return _wait_in_lines(number, between)
    with Live(console=out, auto_refresh=False, transient=True) as live:
        while True:
            with read() as session:
                view = experiment_view(session, number)
            if view.finding is not None or not view.is_live:
                break
            live.update(render(view), refresh=True)
            between()
            time.sleep(POLL_S)
    out.print(render(view))
    return view.finding


def _wait_in_lines(number: int, between: Callable[[], object]) -> Finding | None:
    last = ""
    while True:
        with read() as session:
            view = experiment_view(session, number)
        if view.finding is not None or not view.is_live:
            console().print(render(view))
            return view.finding
        line = one_line(view)
        if line != last:
            print(line, flush=True)
            last = line
        between()
        time.sleep(POLL_S)


def cancel(
    number: Number,
    reason: Annotated[str, typer.Option(help="Why; it becomes part of the finding.")],
) -> None:
    """Cancel an experiment; what it showed so far is kept and judged."""
    with write() as session:
        cancel_experiment(session, number, reason, datetime.now(UTC))
    try:
        flush()
    except BrokerUnavailableError as error:
        print(f"{error} {error.remedy}", file=sys.stderr)
    console().print(f"experiment {number} is being cancelled", markup=False)


@context_app.command("diff")
def context_diff(
    number: Number,
    block: Annotated[int, typer.Option(help="Index of the block.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Compare the contexts of a block's executions field by field."""
    with read() as session:
        experiment = get(session, number)
        design = design_of(experiment)
        found = [e for e, b, _ in executions_of(session, number) if b.index == block and e.attempt == b.attempt]
    if not found:
        raise InvalidValueError("block", block, "it has no executions", f"`likewise show {number}` shows which ran.")
    by_arm = {execution.arm: context_of(execution) for execution in found}
    as_built = design.tests_mode.value == "as_built"
    rows = []
    for arm in design.treated:
        if arm.index not in by_arm or 0 not in by_arm:
            continue
        declared = declared_fields(arm.treatments, as_built=as_built) | declared_fields(
            design.control.treatments, as_built=as_built
        )
        for difference in contexts.differences(by_arm[0], by_arm[arm.index], frozenset(), arm.index):
            key = (difference.channel, difference.name)
            cls = next(
                e["context_class"] for e in found[0].context + found[-1].context if (e["channel"], e["name"]) == key
            )
            rows.append({"difference": difference, "declared": key in declared, "class": cls})
    if as_json:
        print_json(rows)
        return
    table = Table("arm", "channel", "field", "class", "control", "treated", "declared", box=None, pad_edge=False)
    for row in rows:
        item = row["difference"]
        values = (Text(short(item.control)), Text(short(item.treated)))
        mark = "yes" if row["declared"] else "no" if row["class"] == "identity" else ""
        table.add_row(str(item.arm), item.channel, item.name, row["class"], *values, mark)
    console().print(table if rows else "the contexts are equal in every field")


def one_line(view: ExperimentView) -> str:
    """Return the progress of an experiment on one line."""
    parts = [f"experiment {view.id}: block {view.blocks_done}/{view.blocks_max}"]
    counted = [comparison for comparison in view.comparisons if comparison.control.runs]
    parts += [f"{fraction(c.control)} against {fraction(c.treated)} {short(c.change)}" for c in counted]
    parts += [where(view, item, with_test=False) for item in view.running]
    if not view.running:
        parts.append("waiting for a free slot" if view.waiting else "deciding")
    return "; ".join(parts)


def where(view: ExperimentView, item: Running, *, with_test: bool) -> str:
    """Return what a running block does now; without its test, a line changes only when the arm does."""
    name = {Purpose.PREPARE: "preparing", Purpose.PROBE: "probing for the signature"}.get(item.purpose)
    text = name or f"running block {item.index}"
    if item.arm is not None:
        arm = view.arms[item.arm]
        text += f", {arm.role.value}" + (f" {arm.index}" if len(view.arms) > 2 else "")
    if not with_test:
        return text
    if item.phase and item.phase != "execute":
        text += f", {item.phase}"
    if item.total:
        text += f" {item.done or 0}/{item.total}"
    return f"{text} {item.test}" if item.test else text


def render(view: ExperimentView) -> RenderableType:
    """Return an experiment as a terminal shows it, finished or not."""
    parts: list[RenderableType] = [_head(view)]
    parts.append(Padding(_arms(view), (1, 0, 0, 2)))
    strip = _strip(view)
    if strip.plain:
        parts.append(Padding(strip, (1, 0, 0, 2)))
    shown = [c for c in view.comparisons if c.difference is not None and view.finding is None]
    parts.extend(Padding(_interval(view, comparison), (0, 0, 0, 2)) for comparison in shown)
    if view.finding is None:
        parts.extend(Padding(Text(where(view, item, with_test=True), "cyan"), (0, 0, 0, 2)) for item in view.running)
        if not view.running:
            text = "waiting for a free slot; `likewise up` starts a worker" if view.waiting else "deciding"
            parts.append(Padding(Text(text, "dim"), (0, 0, 0, 2)))
        parts.append(Padding(Text(f"at most {view.blocks_possible} blocks to go", "dim"), (0, 0, 0, 2)))
    else:
        parts.append(_finding(view.finding))
    parts.append(Text(f"page: {settings().effective_public_url}/experiments/{view.id}", "dim"))
    return Group(*parts)


def _head(view: ExperimentView) -> Text:
    text = Text()
    if view.finding is not None:
        text.append(view.finding.verdict.value, VERDICT_STYLES.get(view.finding.verdict, "bold"))
        text.append(f"  experiment {view.id}\n", "dim")
        text.append(view.finding.sentence)
    else:
        text.append(f"experiment {view.id} ", "bold")
        text.append(f"{view.state.value}: {view.victim}")
    return text


def _arms(view: ExperimentView) -> Table:
    table = Table(box=None, pad_edge=False, show_header=True)
    for name in ("arm", "what", "failed", ""):
        table.add_column(name)
    counts = {comparison.arm: comparison.treated for comparison in view.comparisons}
    if view.comparisons:
        counts[0] = max((c.control for c in view.comparisons), key=lambda item: item.runs)
    for arm in view.arms:
        own = counts.get(arm.index)
        bar = Text()
        if own is not None and own.runs:
            filled = round(BAR * own.match / own.runs)
            bar = Text("#" * filled, "red").append("." * (BAR - filled), "green")
        table.add_row(arm.role.value, Text(arm.words), fraction(own) if own is not None and own.runs else "-", bar)
    return table


def _strip(view: ExperimentView) -> Text:
    text = Text()
    blocks = [attempt for attempt in view.attempts if attempt.purpose is Purpose.COUNT]
    for arm in view.arms:
        marks = [(MARKS[cell.state], a.index) for a in blocks for cell in a.cells if cell.arm == arm.index]
        if not marks:
            continue
        text.append(f"{arm.role.value:<8} ", "dim")
        for (mark, style), index in marks:
            text.append(mark, style)
            if index == view.stop_index:
                text.append("|", "bold")
        text.append("\n")
    if text.plain:
        text.append(
            "# failed with the signature  . passed  ? another way  + ran, block not complete  x void  | decided here",
            "dim",
        )
    return text


def _interval(view: ExperimentView, comparison: Comparison) -> Text:
    name = f"{comparison.name}: " if len(view.comparisons) > 1 else ""
    shown = limits(comparison.difference) if comparison.difference else ""
    return Text(f"{name}control minus treated: {shown}", "dim")


def _finding(finding: Finding) -> RenderableType:
    text = Text("\n")
    for line in finding.explanations:
        text.append(f"  - {line}\n")
    for arm in finding.arms:
        rows = [row for row in arm.side_table if row.is_new or row.p_holm <= SIDE_TABLE_P][:SIDE_TABLE_ROWS]
        for row in rows:
            (a, n), (b, m) = row.control, row.treated
            kind = "new" if row.is_new else "in the control too"
            text.append(f"  - also {row.test}: {a}/{n} against {b}/{m} ({kind}, Holm p {row.p_holm:.2g})\n")
    stop = "" if finding.stop_index is None else f", decided at block {finding.stop_index}"
    text.append(f"  {finding.blocks_counted} blocks, {finding.executions} executions{stop}", "dim")
    if finding.signature is not None:
        values = ", ".join(finding.signature.values) or "any failure"
        text.append(f"\n  signature: {values} ({finding.signature.source})", "dim")
    if finding.next_command:
        text.append("\nnext decisive experiment:\n", "bold")
        text.append(f"  {finding.next_command}")
    return text
