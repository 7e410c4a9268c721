"""`likewise compare` and `likewise power`: pure statistics, without a server."""

import json
import math
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.stats.compare import Comparison, OddsRatio, fisher_greater_table
from service.stats.compare import compare as compare_counts
from service.stats.intervals import wilson
from service.stats.operating import OperatingCharacteristics, operating_characteristics
from service.stats.power import (
    TARGET_POWER,
    clean_runs_to_exclude,
    fixed_runs_per_arm,
    largest_detectable_rate,
    power_to_implicate,
    propose_blocks,
)
from service.stats.sequential import build_boundary, early_not_reproduced_blocks

PLOT_WIDTH = 50
LEVELS_PLOTTED = 9

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def compare(
    first: Annotated[str, typer.Argument(metavar="K1/N1", help="Runs that passed of all runs, before: 18/20.")],
    second: Annotated[str, typer.Argument(metavar="K2/N2", help="The same after: 7/20.")],
    confidence: Annotated[float, typer.Option(help="Confidence of the intervals.")] = 0.95,
    noun: Annotated[str, typer.Option(help='What the counts count, for example "failure rate".')] = "pass rate",
    as_json: AsJson = False,
) -> None:
    """Compare two counts: exact tests, odds ratio, the interval of the difference, and one plain sentence."""
    (k1, n1), (k2, n2) = _count(first), _count(second)
    _check_open_unit("--confidence", confidence)
    try:
        result = compare_counts(k1, n1, k2, n2, noun=noun, confidence=confidence)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if as_json:
        typer.echo(json.dumps(_finite(asdict(result))))
        return
    console = _console()
    console.print(Text(result.sentence))
    console.print()
    for k, n in ((k1, n1), (k2, n2)):
        console.print(Text(f"{k:>4}/{n:<4} {_interval_plot(*wilson(k, n, confidence), k / n if n else None)}"))
    console.print(Text(f"{'':>9} 0{'rate, with its Wilson interval':^{PLOT_WIDTH - 2}}1"))
    console.print()
    console.print(_comparison_table(result))


def power(
    base: Annotated[str, typer.Option(help="Failure rate of the control, 0.65, or its history, 13/20.")],
    treated: Annotated[float, typer.Option(help="Failure rate of the treated arm.")] = 0.0,
    blocks: Annotated[int, typer.Option(help="Most blocks; 0 proposes the number with power 0.9.")] = 0,
    alpha: Annotated[float, typer.Option(help="Error rate of IMPLICATED.")] = 0.025,
    as_json: AsJson = False,
) -> None:
    """Plan an A/B: blocks and executions needed, what the design can show, and how many clean runs exclude the rate."""
    history = _count(base) if "/" in base else None
    rate = _history_rate(base, history) if history else _rate("--base", base)
    if not 0.0 <= treated <= 1.0:
        raise typer.BadParameter(f"--treated {treated} is not a failure rate: it must lie between 0 and 1")
    _check_open_unit("--alpha", alpha)
    if not 0 <= blocks <= 100:
        raise typer.BadParameter(f"--blocks {blocks}: an exact boundary has 1 to 100 blocks (0 proposes a number)")
    plan = _plan(rate, treated, blocks, alpha, history)
    if as_json:
        typer.echo(json.dumps(_finite(plan)))
        return
    console = _console()
    console.print(Text(_plan_sentence(plan)))
    console.print()
    console.print(_endings_table(plan))
    console.print()
    console.print(Text(f"Probability of IMPLICATED within {plan['blocks']} blocks, by treated failure rate"))
    for step in range(LEVELS_PLOTTED):
        level = rate * step / (LEVELS_PLOTTED - 1)
        reached = power_to_implicate(plan["blocks"], rate, level, alpha)
        console.print(Text(f"  {level:5.3f} {'█' * round(PLOT_WIDTH * reached):<{PLOT_WIDTH}} {reached:.2f}"))


def _plan(rate: float, treated: float, blocks: int, alpha: float, history: tuple[int, int] | None) -> dict[str, Any]:
    """Everything `power` shows, as JSON types; None where no number exists."""
    proposal = propose_blocks(rate, alpha)
    used = blocks or proposal.blocks
    boundary = build_boundary(used, alpha)
    scenarios = {"full cure": (rate, 0.0), "as asked": (rate, treated), "no effect": (rate, rate)}
    if treated == 0.0:
        del scenarios["as asked"]
    ends = {name: operating_characteristics(boundary, *rates) for name, rates in scenarios.items()}
    differs = treated < rate
    return {
        "p_control": rate,
        "p_treated": treated,
        "alpha": alpha,
        "blocks": used,
        "proposed_blocks": proposal.blocks,
        "is_settled_rarely": proposal.is_settled_rarely,
        "largest_detectable_rate": largest_detectable_rate(used, rate, alpha),
        "ends": {name: _ending(rates, ends[name]) for name, rates in scenarios.items()},
        "fixed_runs_per_arm_boschloo": fixed_runs_per_arm(rate, treated, alpha) if differs else None,
        "fixed_runs_per_arm_fisher": (
            fixed_runs_per_arm(rate, treated, alpha, p_values=fisher_greater_table) if differs else None
        ),
        "clean_runs_to_exclude_base": clean_runs_to_exclude(rate),
        "early_not_reproduced_blocks": early_not_reproduced_blocks(*history) if history else None,
    }


def _ending(rates: tuple[float, float], ends: OperatingCharacteristics) -> dict[str, float]:
    return {
        "p_control": rates[0],
        "p_treated": rates[1],
        "implicated": ends.implicated,
        "worsened": ends.worsened,
        "exonerated": ends.exonerated,
        "undecided": ends.undecided,
        "expected_executions": ends.expected_executions,
    }


def _plan_sentence(plan: dict[str, Any]) -> str:
    """The plan in words."""
    rate, blocks = plan["p_control"], plan["blocks"]
    parts = [f"At a failure rate of {rate:.3g}, {blocks} blocks are at most {2 * blocks} executions."]
    if plan["is_settled_rarely"]:
        parts.append(
            f"No number of blocks up to 100 has power {TARGET_POWER} against a full cure: the rate is too low."
        )
    else:
        parts.append(
            f"{plan['proposed_blocks']} blocks are proposed: power {TARGET_POWER} against a full cure, at least 16."
        )
    detectable = plan["largest_detectable_rate"]
    if detectable is None:
        parts.append(f"Not even a full cure is shown with power {TARGET_POWER}.")
    else:
        parts.append(f"A fall to {detectable:.3f} or lower is shown with power {TARGET_POWER}.")
    if plan["fixed_runs_per_arm_boschloo"] is not None:
        parts.append(f"A fixed-size test (Boschloo) would need {plan['fixed_runs_per_arm_boschloo']} runs per arm.")
    parts.append(f"{plan['clean_runs_to_exclude_base']} runs without a failure exclude this rate (95%).")
    if plan["early_not_reproduced_blocks"] is not None:
        parts.append(f"With this history, {plan['early_not_reproduced_blocks']} clean blocks end as NOT_REPRODUCED.")
    return " ".join(parts)


def _comparison_table(result: Comparison) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    interval = result.difference
    limits = f"{interval.lower:.4f} to {interval.upper:.4f}"
    table.add_row("difference", limits, f"{interval.method}: {interval.reason}")
    if result.p_fisher is not None:
        table.add_row("Fisher", f"p = {result.p_fisher:.4g}", "two-sided, exact")
    if result.p_boschloo is not None:
        table.add_row("Boschloo", f"p = {result.p_boschloo:.4g}", "two-sided, exact, unconditional")
    table.add_row("odds ratio", _odds(result.odds_ratio), "conditional, exact limits")
    for reason in result.left_out:
        table.add_row("left out", reason, "")
    return table


def _endings_table(plan: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "rates", "implicated", "worsened", "exonerated", "undecided", "executions"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, ends in plan["ends"].items():
        table.add_row(
            name,
            f"{ends['p_control']:.3g} / {ends['p_treated']:.3g}",
            *(f"{ends[key]:.3f}" for key in ("implicated", "worsened", "exonerated", "undecided")),
            f"{ends['expected_executions']:.1f}",
        )
    return table


def _odds(ratio: OddsRatio) -> str:
    estimate = "any" if ratio.estimate is None else f"{ratio.estimate:.4g}"
    return f"{estimate} ({ratio.lower:.4g} to {ratio.upper:.4g})"


def _interval_plot(lower: float, upper: float, estimate: float | None) -> str:
    """A line of the unit interval with the limits filled in and the estimate marked."""
    start, end = round(lower * (PLOT_WIDTH - 1)), round(upper * (PLOT_WIDTH - 1))
    line = ["─" if start <= place <= end else "·" for place in range(PLOT_WIDTH)]
    if estimate is not None:
        line[round(estimate * (PLOT_WIDTH - 1))] = "●"
    return "".join(line)


def _count(text: str) -> tuple[int, int]:
    """(k, n) of "k/n"; a usage error that names the text otherwise."""
    first, slash, second = text.partition("/")
    if not (slash and first.isascii() and first.isdigit() and second.isascii() and second.isdigit()):
        raise typer.BadParameter(f"{text!r} is not a count: write it as two whole numbers, for example 18/20")
    k, n = int(first), int(second)
    if k > n:
        raise typer.BadParameter(f"{text!r} counts more than there were: {k} of {n}")
    return k, n


def _history_rate(text: str, history: tuple[int, int]) -> float:
    failures, runs = history
    if failures == 0:
        raise typer.BadParameter(f"--base {text!r} has no failure: give the failure rate that is to be planned for")
    return failures / runs


def _rate(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise typer.BadParameter(f"{name} {text!r} is neither a rate, as 0.65, nor a history, as 13/20") from None
    if not 0.0 < value <= 1.0:
        raise typer.BadParameter(f"{name} {text} is not a failure rate that can be planned for: it must lie in (0, 1]")
    return value


def _check_open_unit(name: str, value: float) -> None:
    if not 0.0 < value < 1.0:
        raise typer.BadParameter(f"{name} {value} must lie strictly between 0 and 1")


def _finite(value: Any) -> Any:
    """The value with infinities, which JSON does not have, as null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)
