"""Figures say in shapes and in words what the numbers say."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from service.domain import Purpose
from service.experiments.model import Counts, Interval
from service.history.progress import AttemptStanding, AttemptView, Cell, CellState
from service.web import figures

SVG = "{http://www.w3.org/2000/svg}"


def parse(markup: str) -> ET.Element:
    return ET.fromstring(f'<root xmlns="http://www.w3.org/2000/svg">{markup}</root>')


def attempt(index: int, states: tuple[CellState, CellState], standing=AttemptStanding.COUNTED, **values) -> AttemptView:
    order = (0, 1) if index % 2 else (1, 0)
    cells = tuple(Cell(arm, states[arm], 7.0) for arm in order)
    return AttemptView(index, Purpose.COUNT, values.get("attempt", 1), standing, cells, values.get("reason"))


def test_a_bar_is_as_long_as_its_share_and_tells_its_counts():
    root = parse(figures.bar(Counts(match=3, clean=6, other=1), "control <x>"))
    widths = {rect.get("class"): float(rect.get("width")) for rect in root.iter(f"{SVG}rect")}
    assert widths == {"track": 1000, "match": 300, "other": 100, "clean": 600}
    label = root.find(f"{SVG}svg").get("aria-label")
    assert label == "control <x>: 3 failed, 6 passed, 1 ended another way, of 10"


def test_an_interval_has_its_zero_line_in_the_middle_and_its_range_where_it_belongs():
    root = parse(figures.interval(Interval(0.2, 0.8, "exact"), 0.5, "rates"))
    zero = root.find(f".//{SVG}line[@class='zero']")
    span = root.find(f".//{SVG}rect")
    assert float(zero.get("x1")) == 500
    assert (float(span.get("x")), float(span.get("width"))) == pytest.approx((600, 300))
    assert span.get("class") == "range clear"


@pytest.mark.parametrize(("lower", "upper"), [(None, 0.4), (-0.2, None), (None, None), (-3.0, 2.0)])
def test_an_unbounded_interval_ends_at_the_axis(lower: float | None, upper: float | None):
    span = parse(figures.interval(Interval(lower, upper, "exact"), 0.1, "rates")).find(f".//{SVG}rect")
    left, width = float(span.get("x")), float(span.get("width"))
    assert left >= 0
    assert left + width <= 1000
    assert span.get("class") == "range crosses"


def test_the_strip_has_a_cell_an_execution_in_rows_by_arm_with_its_place():
    failed, passed = CellState.MATCH, CellState.CLEAN
    views = [attempt(0, (failed, passed)), attempt(1, (failed, passed)), attempt(2, (passed, passed))]
    root = parse(figures.strip(5, views, {0: "control", 1: "<b>treated</b>"}, {1: 1}))
    cells = [cell for cell in root.iter(f"{SVG}g") if (cell.get("class") or "").startswith("cell")]
    assert len(cells) == 6
    rows = {cell.get("transform").split()[1].rstrip(")") for cell in cells}
    assert len(rows) == 2
    places = [cell.find(f"{SVG}text").text for cell in cells]
    assert places == ["1", "2"] * 3
    links = [link.get("href") for link in root.iter(f"{SVG}a")]
    assert links[0] == "/experiments/5/executions/0/1/1"
    (stop,) = [group for group in root.iter(f"{SVG}g") if group.get("class") == "stop"]
    assert stop.find(f"{SVG}title").text == "block 2 settled <b>treated</b>"


def test_every_state_has_a_shape_of_its_own_and_words():
    drawn = {str(figures.legend_cell(state)).replace(state.value, "") for state in CellState}
    assert len(drawn) == len(CellState) == len(set(figures.CELL_WORDS.values()))


def test_a_void_attempt_says_why_and_links_to_nothing_that_is_not_stored():
    void = AttemptView(
        0, Purpose.COUNT, 2, AttemptStanding.VOID, (Cell(0, CellState.VOID), Cell(1, CellState.VOID)), "rebooted"
    )
    root = parse(figures.strip(5, [void], {0: "control", 1: "treated"}, {}))
    assert not list(root.iter(f"{SVG}a"))
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert titles[0] == "block 1, attempt 2, run 1: control void (void: rebooted)"
