"""`likewise threshold FILE`: why a metric crosses its threshold, from a file of numbers, without a server."""

import csv
import io
import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from service.stats.assertions import (
    MeanAssertion,
    OperatingCurve,
    TwoPartAssertion,
    operating_curve,
    recommend_assertion,
)
from service.stats.thresholds import (
    QUANTILES,
    Change,
    PassRate,
    SampleChange,
    Summary,
    compare_samples,
    pass_rate,
    summarise,
)

PLOT_WIDTH = 50
BINS = 12
DEFAULT_N = 32
MOST_N = 1000  # 40,000 executions of so many values are drawn at once


def threshold(
    file: Annotated[Path, typer.Argument(help="Numbers: one a line, a CSV file, or JSON; - reads standard input.")],
    column: Annotated[str, typer.Option(help="Column of a CSV file, or key of JSON objects.")] = "",
    limit: Annotated[float | None, typer.Option(help="Threshold of the present assertion `mean < LIMIT`.")] = None,
    n: Annotated[int, typer.Option("--n", help="Values that one execution averages.")] = DEFAULT_N,
    cut: Annotated[float | None, typer.Option(help="Values above it are outliers; found when left out.")] = None,
    after: Annotated[Path | None, typer.Option(help="A second sample: what changed from FILE to it?")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the resampling.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Tell a shift from outliers, say how often a threshold passes, and recommend an assertion in two parts."""
    if not 2 <= n <= MOST_N:
        raise typer.BadParameter(f"--n {n}: an execution averages 2 to {MOST_N:,} values")
    if seed < 0:
        raise typer.BadParameter(f"--seed {seed} must be at least 0")
    for name, value in (("--limit", limit), ("--cut", cut)):
        if value is not None and not math.isfinite(value):
            raise typer.BadParameter(f"{name} {value} is not a finite number")
    values = read_numbers(file, column)
    if not values:
        raise typer.BadParameter(f"{file} holds no numbers")
    rng = np.random.default_rng(seed)
    try:
        summary = summarise(values, cut)
        passing = None if limit is None else pass_rate(values, limit, n, rng, summary.cut)
        recommended = recommend_assertion(values, n, rng, summary.cut)
        curve = operating_curve(values, n, recommended.fails, rng, summary.cut)
        present = None if limit is None else operating_curve(values, n, MeanAssertion(limit).fails, rng, summary.cut)
        change = None if after is None else compare_samples(values, read_numbers(after, column), rng, summary.cut)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if as_json:
        typer.echo(json.dumps(_finite(_document(summary, passing, recommended, curve, present, change))))
        return
    console = Console(highlight=False, soft_wrap=True)
    for line in _lines(values, summary, passing, recommended, curve, present, change):
        console.print(Text(line))


def read_numbers(file: Path, column: str = "") -> list[float]:
    """The numbers of a file: JSON (a list of numbers, or of objects with `column`), CSV with `column`, or one a line.

    BadParameter names the line, the entry or the column that is no number.
    """
    if str(file) == "-":
        text = typer.get_text_stream("stdin").read()
    else:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"{file} cannot be read: {error}") from error
    text = text.removeprefix("\ufeff")  # the byte order mark that spreadsheets write
    if text.lstrip().startswith(("[", "{")):
        return _from_json(file, text, column)
    if column:
        return _from_csv(file, text, column)
    return [_number(f"{file}:{k}", line) for k, line in enumerate(text.splitlines(), 1) if line.strip()]


def _from_json(file: Path, text: str, column: str) -> list[float]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        # JSON lines: one object a line.
        document = [_json_line(file, k, line) for k, line in enumerate(text.splitlines(), 1) if line.strip()]
    if isinstance(document, dict) and isinstance(document.get(column), int | float):
        document = [document]  # a single JSON line
    if isinstance(document, dict):
        if not isinstance(document.get(column), list):
            raise typer.BadParameter(f"{file} is an object: name a key that holds a list, --column {_names(document)}")
        return [_number(f"{file}: entry {k}", value) for k, value in enumerate(document[column], 1)]
    return [
        _number(f"{file}: entry {k}", _member(file, k, value, column) if isinstance(value, dict) else value)
        for k, value in enumerate(document, 1)
    ]


def _json_line(file: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:  # not JSON, a number of too many digits, lists too deep
        raise typer.BadParameter(f"{file}:{number} is not JSON: {error}") from error


def _member(file: Path, number: int, value: dict[str, Any], column: str) -> Any:
    if column not in value:
        raise typer.BadParameter(f"{file}: entry {number} has no key {column!r}; --column {_names(value)}")
    return value[column]


def _from_csv(file: Path, text: str, column: str) -> list[float]:
    rows = csv.DictReader(io.StringIO(text))
    if (rows.fieldnames or []).count(column) > 1:
        raise typer.BadParameter(f"{file} has several columns {column!r}: which one is meant cannot be told")
    if column not in (rows.fieldnames or ()):
        raise typer.BadParameter(f"{file} has no column {column!r}; --column {' or '.join(rows.fieldnames or ())}")
    return [_number(f"{file}:{rows.line_num}", row[column]) for row in rows]


def _names(document: dict[str, Any]) -> str:
    return " or ".join(map(str, document)) or "NAME"


def _number(place: str, value: object) -> float:
    try:
        return float(str(value))
    except ValueError as error:
        raise typer.BadParameter(f"{place}: {value!r} is not a number; a CSV file needs --column") from error


def _document(
    summary: Summary,
    passing: PassRate | None,
    recommended: TwoPartAssertion,
    curve: OperatingCurve,
    present: OperatingCurve | None,
    change: SampleChange | None,
) -> dict[str, Any]:
    """Everything that is shown, as JSON types."""
    quantiles = {f"{level:g}": value for level, value in zip(QUANTILES, summary.quantiles, strict=True)}
    return {
        "sample": asdict(summary) | {"quantiles": quantiles, "outlier_rate": summary.outlier_rate},
        "present": None
        if passing is None or present is None
        else {"pass_rate": asdict(passing), "operating": _curve(present)},
        "recommended": {"assertion": asdict(recommended), "operating": _curve(curve)},
        "change": None if change is None else asdict(change),
    }


def _curve(curve: OperatingCurve) -> dict[str, Any]:
    caught = {
        "smallest_shift_caught": curve.smallest_shift_caught,
        "smallest_rate_caught": curve.smallest_rate_caught,
    }
    return asdict(curve) | caught


def _finite(value: Any) -> Any:
    """JSON has no infinity: such a number is None."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _lines(
    values: list[float],
    summary: Summary,
    passing: PassRate | None,
    recommended: TwoPartAssertion,
    curve: OperatingCurve,
    present: OperatingCurve | None,
    change: SampleChange | None,
) -> Iterator[str]:
    median = summary.quantiles[QUANTILES.index(0.5)]
    yield (
        f"{summary.n} values: mean {summary.mean:.4g}, without the largest tenth {summary.trimmed_mean:.4g}, "
        f"median {median:.4g}, largest {summary.maximum:.4g}; {summary.n_outliers} above the cut {summary.cut:.4g}."
    )
    yield ""
    yield from _histogram(values)
    if passing is not None and present is not None:
        yield ""
        yield (
            f"mean of {passing.n_per_execution} < {passing.threshold:g} passes with probability {passing.estimate:.3f} "
            f"({passing.lower:.3f} to {passing.upper:.3f}, 95 %); {_caught(present)}."
        )
    yield ""
    yield (
        f"Recommended for {recommended.n} values: mean without the largest {recommended.trim:.0%} < "
        f"{recommended.most_mean:.4g}, and at most {recommended.most_outliers} above {recommended.cut:.4g}."
    )
    yield f"It fails healthy executions with probability {curve.false_fail:.1g}; {_caught(curve)}."
    if change is not None:
        yield ""
        yield _change_sentence(change)


def _caught(curve: OperatingCurve) -> str:
    shift, rate = curve.smallest_shift_caught, curve.smallest_rate_caught
    core = f"a core x{shift:g}" if shift is not None else f"no core up to x{curve.shifts[-1]:g}"
    if not curve.rates:
        return f"it catches {core} (fails with 0.9)"
    outliers = f"outliers from {rate:.0%} on" if rate is not None else f"no outlier rate up to {curve.rates[-1]:.0%}"
    return f"it catches {core} and {outliers} (fails with 0.9)"


def _change_sentence(change: SampleChange) -> str:
    what = {
        Change.NONE: "No change is shown",
        Change.SHIFT: "SHIFT: the core moved",
        Change.MORE_OUTLIERS: "MORE OUTLIERS: the core did not move, but more values are far out",
        Change.BOTH: "BOTH: the core moved and more values are far out",
    }[change.change]
    before, after = change.before, change.after
    return (
        f"{what} (trimmed mean x{change.factor:.3g}; rank test p {change.p_rank:.2g}, trimmed mean p "
        f"{change.p_trimmed:.2g}, outliers {before.n_outliers}/{before.n} to {after.n_outliers}/{after.n} p "
        f"{change.p_outliers:.2g}; one-sided, upwards)."
    )


def _histogram(values: list[float]) -> Iterator[str]:
    """Bars of counts, on a log scale of the values where all are positive."""
    x = np.array(values)
    if x.min() == x.max():
        yield f"  {x.min():>10.4g} {'█' * PLOT_WIDTH} {x.size}"
        return
    edges = np.geomspace(x.min(), x.max(), BINS + 1) if x.min() > 0 else np.linspace(x.min(), x.max(), BINS + 1)
    # Rounding must not push the largest value out of the last bin.
    edges[-1], edges[0] = x.max(), x.min()
    counts, _ = np.histogram(x, edges)
    for low, count in zip(edges[:-1], counts, strict=True):
        bar = "█" * max(round(PLOT_WIDTH * count / counts.max()), 1 if count else 0)
        yield f"  {low:>10.4g} {bar:<{PLOT_WIDTH}} {count}"
