"""What each page shows, as frozen values. A template gets one of them, as `page`, and formats nothing itself."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from service.web.words import Badge


@dataclass(frozen=True, slots=True)
class Moment:
    """A time: for machines, and in words."""

    iso: str
    words: str


@dataclass(frozen=True, slots=True)
class ExperimentItem:
    """One line of the list of experiments."""

    id: int
    path: str
    badge: Badge
    victim: str
    sentence: str
    place: str
    progress: str
    age: Moment


@dataclass(frozen=True, slots=True)
class Choice:
    """One entry of a filter."""

    value: str
    label: str
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class ExperimentsPage:
    """The list of experiments. `next_path`: the next page of it, None at the end."""

    title: str
    items: tuple[ExperimentItem, ...]
    projects: tuple[Choice, ...]
    verdicts: tuple[Choice, ...]
    is_filtered: bool
    next_path: str | None
    is_live: bool


@dataclass(frozen=True, slots=True)
class Outcomes:
    """An arm's counts in words and as a figure, None when nothing was counted."""

    label: str
    counts: str
    other: str
    figure: Markup | None


@dataclass(frozen=True, slots=True)
class CheckRow:
    """A counter that the treatment should move: expected, seen in each arm, and whether it holds."""

    counter: str
    expected: str
    before: str
    after: str
    verdict: str
    tone: str


@dataclass(frozen=True, slots=True)
class TestLine:
    """One test beside the victim."""

    __test__ = False
    test: str
    control: str
    treated: str
    where: str
    tone: str
    p_value: str


@dataclass(frozen=True, slots=True)
class ComparisonPanel:
    """A treated arm beside the control. `interval` None: nothing was counted yet."""

    name: str
    badge: Badge | None
    sentence: str
    outcomes: tuple[Outcomes, ...]
    interval: Markup | None
    interval_words: str
    share: str
    share_words: str
    acted: str
    checks: tuple[CheckRow, ...]
    tests: tuple[TestLine, ...]
    tests_words: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CellLine:
    """One execution in the table of blocks; `path` None: nothing is stored of it."""

    arm: str
    state: str
    path: str | None


@dataclass(frozen=True, slots=True)
class BlockLine:
    """One attempt of a block in the table of blocks."""

    name: str
    standing: str
    cells: tuple[CellLine, ...]


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """A shape of the strip and what it means."""

    figure: Markup
    words: str


@dataclass(frozen=True, slots=True)
class Strip:
    """The blocks: figure, row labels, legend, and the same as a table."""

    figure: Markup
    labels: tuple[str, ...]
    legend: tuple[LegendEntry, ...]
    lines: tuple[BlockLine, ...]
    words: str


@dataclass(frozen=True, slots=True)
class FieldLine:
    """One field of the context with its value in every arm."""

    name: str
    standing: str
    tone: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Channel:
    """The fields of one channel: those that differ, and those that are equal or only observed."""

    name: str
    differing: tuple[FieldLine, ...]
    rest: tuple[FieldLine, ...]


@dataclass(frozen=True, slots=True)
class Contexts:
    """The contexts of the arms beside each other."""

    words: str
    tone: str
    arms: tuple[str, ...]
    channels: tuple[Channel, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting with its exact value."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ExperimentPage:
    """The evidence page of one experiment. `headline` carries the answer, `rest` what qualifies it."""

    title: str
    id: int
    place: str
    asked: str
    age: Moment
    badge: Badge
    headline: str
    rest: str
    is_live: bool
    progress: str
    running: tuple[str, ...]
    comparisons: tuple[ComparisonPanel, ...]
    strip: Strip
    explanations: tuple[str, ...]
    next_command: str
    contexts: Contexts
    settings: tuple[Setting, ...]
    mark: str
    events_path: str
    json_path: str
    parent_path: str | None


@dataclass(frozen=True, slots=True)
class ResultLine:
    """One result of an execution; `detail` is shown when it is opened."""

    position: str
    test: str
    outcome: str
    tone: str
    duration: str
    message: str
    output: str
    is_victim: bool
    is_open: bool


@dataclass(frozen=True, slots=True)
class Sibling:
    """Another execution of the same block; `path` None: this one."""

    label: str
    path: str | None


@dataclass(frozen=True, slots=True)
class ExecutionPage:
    """The results and the output of one execution."""

    title: str
    experiment_path: str
    experiment: int
    heading: str
    summary: str
    siblings: tuple[Sibling, ...]
    settings: tuple[Setting, ...]
    results: tuple[ResultLine, ...]
    counters: tuple[Setting, ...]
    context: tuple[Setting, ...]


@dataclass(frozen=True, slots=True)
class ErrorPage:
    """An error, and the way out of it."""

    title: str
    status: int
    message: str
    way_out: str
