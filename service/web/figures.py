"""Figures as SVG: bars of outcomes, intervals with their zero line, the strip of blocks. Pure; text is escaped.

Colours come from classes in `static/app.css`; every state also has a shape of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from service.domain import Purpose
from service.experiments.model import Counts, Interval
from service.history.progress import AttemptStanding, AttemptView, Cell, CellState

CELL = 24
GAP = 3
HEAD = 22
BAR_WIDTH = 1000

CELL_WORDS = {
    CellState.MATCH: "failed with the signature",
    CellState.CLEAN: "passed",
    CellState.OTHER: "ended another way",
    CellState.VOID: "void",
    CellState.DONE: "ran; its block is not complete yet",
    CellState.RUNNING: "running",
    CellState.PENDING: "waiting",
}
_STANDING_WORDS = {
    AttemptStanding.COUNTED: "counted",
    AttemptStanding.UNCOUNTED: "not counted: it only fixes the signature",
    AttemptStanding.WAITING: "counts once the blocks before it are complete",
    AttemptStanding.AFTER_STOP: "after the stop: shown, not counted",
    AttemptStanding.VOID: "void",
    AttemptStanding.RUNNING: "running",
    AttemptStanding.PENDING: "waiting",
}


def bar(counts: Counts, label: str) -> Markup:
    """Return one bar: failures solid, other ends hatched, passes open; an empty track without runs."""
    text = f"{label}: {counts.match} failed, {counts.clean} passed, {counts.other} ended another way, of {counts.runs}"
    parts = [Markup('<rect class="track" x="0" y="0" width="1000" height="20"/>')]
    x = 0.0
    for name, count in (("match", counts.match), ("other", counts.other), ("clean", counts.clean)):
        width = BAR_WIDTH * count / counts.runs if counts.runs else 0.0
        if count:
            parts.append(
                Markup('<rect class="{}" x="{}" y="0" width="{}" height="20"/>').format(name, _n(x), _n(width))
            )
        x += width
    return Markup(
        '<svg class="bar" viewBox="0 0 1000 20" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(text, Markup("").join(parts))


def interval(found: Interval, estimate: float, label: str, low: float = -1.0, high: float = 1.0) -> Markup:
    """Return an interval on an axis from `low` to `high` with its zero line; limits beyond the axis end in arrows."""
    span = high - low
    lower = low if found.lower is None else max(low, found.lower)
    upper = high if found.upper is None else min(high, found.upper)

    def at(value: float) -> float:
        return BAR_WIDTH * (min(high, max(low, value)) - low) / span

    side = "crosses" if lower <= 0 <= upper else "clear"
    return Markup(
        '<svg class="interval" viewBox="0 0 1000 40" preserveAspectRatio="none" role="img" aria-label="{label}">'
        '<line class="axis" x1="0" x2="1000" y1="20" y2="20"/>'
        '<line class="zero" x1="{zero}" x2="{zero}" y1="0" y2="40"/>'
        '<rect class="range {side}" x="{x}" y="12" width="{width}" height="16"/>'
        '<line class="estimate" x1="{e}" x2="{e}" y1="5" y2="35"/></svg>'
    ).format(
        label=label,
        zero=_n(at(0.0)),
        side=side,
        x=_n(at(lower)),
        width=_n(max(2.0, at(upper) - at(lower))),
        e=_n(at(estimate)),
    )


def strip(
    experiment: int, attempts: Sequence[AttemptView], names: Mapping[int, str], stops: Mapping[int, int | None]
) -> Markup:
    """Return the strip: a column an attempt of a block in issue order, a row an arm, the digit its place in the block.

    `stops`: for each treated arm the index of the block that settled it. Cells link to their execution.
    """
    rows = {arm: row for row, arm in enumerate(names)}
    width = max(1, len(attempts)) * (CELL + GAP) + GAP
    height = HEAD + len(rows) * (CELL + GAP)
    parts = [_column(experiment, column, view, rows, names) for column, view in enumerate(attempts)]
    for arm, stop in stops.items():
        columns = [i for i, view in enumerate(attempts) if view.index == stop and view.purpose is Purpose.COUNT]
        if stop is not None and columns and arm in rows:
            x = (columns[-1] + 1) * (CELL + GAP) + GAP / 2
            top = HEAD if len(stops) == 1 else HEAD + rows[arm] * (CELL + GAP)
            bottom = height - GAP if len(stops) == 1 else top + CELL
            parts.append(
                Markup(
                    '<g class="stop"><line x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/><title>{title}</title></g>'
                ).format(x=_n(x), top=top - 4, bottom=bottom + 2, title=f"block {stop + 1} settled {names[arm]}")
            )
    return Markup(
        '<svg class="blocks" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="group" aria-label="{label}">'
        "{parts}</svg>"
    ).format(w=width, h=height, label="Blocks in the order of issue", parts=Markup("").join(parts))


def _column(
    experiment: int, column: int, view: AttemptView, rows: Mapping[int, int], names: Mapping[int, str]
) -> Markup:
    x = column * (CELL + GAP) + GAP
    head = "p" if view.purpose is Purpose.PROBE else str(view.index + 1)
    cells = [
        _cell(experiment, view, cell, place, names[cell.arm], x, HEAD + rows[cell.arm] * (CELL + GAP))
        for place, cell in enumerate(view.cells, start=1)
        if cell.arm in rows
    ]
    return Markup('<g class="column {standing}"><text class="number" x="{x}" y="14">{head}</text>{cells}</g>').format(
        standing=view.standing.value, x=x + CELL / 2, head=head, cells=Markup("").join(cells)
    )


def _cell(experiment: int, view: AttemptView, cell: Cell, place: int, name: str, x: float, y: float) -> Markup:
    title = f"{block_name(view)}, run {place}: {name} {CELL_WORDS[cell.state]} ({standing_words(view)})"
    body = Markup(
        '<g class="cell {state}" transform="translate({x} {y})"><title>{title}</title>'
        '<rect width="{size}" height="{size}" rx="5"/>{glyph}<text class="place" x="{px}" y="{py}">{place}</text></g>'
    ).format(
        state=cell.state.value,
        x=_n(x),
        y=_n(y),
        title=title,
        size=CELL,
        glyph=_GLYPHS[cell.state],
        px=CELL - 2,
        py=CELL - 2,
        place=place,
    )
    if cell.duration_s is None:
        return body
    address = execution_path(experiment, view, cell)
    return Markup('<a href="{}" aria-label="{}">{}</a>').format(address, title, body)


def block_name(view: AttemptView) -> str:
    """Return what a block's attempt is called: blocks count from 1 for people."""
    name = f"probe {-view.index - 1}" if view.purpose is Purpose.PROBE else f"block {view.index + 1}"
    return name if view.attempt == 1 else f"{name}, attempt {view.attempt}"


def standing_words(view: AttemptView) -> str:
    """Return in words what an attempt is worth, and why when it is void."""
    words = _STANDING_WORDS[view.standing]
    return f"{words}: {view.reason}" if view.reason else words


def execution_path(experiment: int, view: AttemptView, cell: Cell) -> str:
    """Return the path of the page of one execution."""
    return f"/experiments/{experiment}/executions/{view.index}/{view.attempt}/{cell.arm}"


def legend_cell(state: CellState) -> Markup:
    """Return one cell for the legend."""
    return Markup(
        '<svg class="blocks" width="18" height="18" viewBox="0 0 {0} {0}" aria-hidden="true">'
        '<g class="cell {1}"><rect width="{0}" height="{0}" rx="5"/>{2}</g></svg>'
    ).format(CELL, state.value, _GLYPHS[state])


def _n(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


_GLYPHS = {
    CellState.MATCH: Markup('<path class="glyph" d="M7 6 L15.5 14.5 M15.5 6 L7 14.5"/>'),
    CellState.CLEAN: Markup('<path class="glyph" d="M6 11 L10 15 L17 7"/>'),
    CellState.OTHER: Markup('<path class="glyph" d="M7 11 H16"/>'),
    CellState.VOID: Markup('<path class="glyph" d="M4 20 L20 4"/>'),
    CellState.DONE: Markup('<circle class="dot" cx="11.5" cy="11" r="3"/>'),
    CellState.RUNNING: Markup('<path class="solid" d="M8 6 L17 11 L8 16 Z"/>'),
    CellState.PENDING: Markup(""),
}
