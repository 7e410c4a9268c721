"""An experiment's view to its evidence page."""

from __future__ import annotations

from datetime import datetime

from gpu_runner.protocol import to_json
from service.domain import ExperimentState, Purpose, Verdict
from service.experiments.explain import under
from service.history.differences import ContextView, FieldRow, Standing
from service.history.progress import AttemptStanding, AttemptView, CellState, ExperimentView, Running
from service.web import figures
from service.web.comparisons import panel
from service.web.contexts import (
    BlockLine,
    CellLine,
    Channel,
    Contexts,
    ExperimentPage,
    FieldLine,
    LegendEntry,
    Moment,
    Setting,
    Strip,
)
from service.web.words import ago, badge_of, duration, shown

_STANDINGS = {
    Standing.EQUAL: ("equal", "quiet"),
    Standing.DECLARED: ("differs, as declared", "clear"),
    Standing.UNDECLARED: ("differs, undeclared", "cause"),
    Standing.DRIFTED: ("drifted beyond its tolerance", "caution"),
    Standing.OBSERVED: ("observed, never compared", "quiet"),
}
_DIFFERS = frozenset({Standing.DECLARED, Standing.UNDECLARED, Standing.DRIFTED})
# Verdicts whose sentence goes on with words of ours, not with a name that must keep its case.
_REASON_FOLLOWS = frozenset({Verdict.INCONCLUSIVE, Verdict.NOT_REPRODUCED})
_PHASES = {
    "checkout": "checking out",
    "build": "building",
    "list": "listing tests",
    "restore": "restoring the tree",
    "warm": "warming caches",
    "execute": "running",
}


def experiment_page(view: ExperimentView, contexts: ContextView, now: datetime) -> ExperimentPage:
    """Return the evidence page."""
    finding = view.finding
    headline, rest = _headline(view)
    return ExperimentPage(
        title=f"{badge_of(view.state, finding.verdict if finding else None).label}: {view.victim}",
        id=view.id,
        place=f"{view.project} · {view.suite} ({view.framework})",
        asked=f"asked by {view.requested_by}" if view.requested_by else f"asked through the {view.origin.value}",
        age=Moment(view.created_at.isoformat(), ago(view.created_at, now)),
        badge=badge_of(view.state, finding.verdict if finding else None),
        headline=headline,
        rest=rest,
        is_live=view.is_live,
        progress=progress_words(view),
        running=tuple(running_words(block) for block in view.running),
        comparisons=tuple(panel(view, comparison) for comparison in view.comparisons),
        strip=_strip(view),
        explanations=finding.explanations if finding else (),
        next_command=finding.next_command if finding else "",
        contexts=_contexts(contexts, _labels(view)),
        settings=_settings(view),
        mark=view.mark,
        events_path=f"/v1/experiments/{view.id}/events",
        json_path=f"/v1/experiments/{view.id}",
        parent_path=f"/experiments/{view.parent_id}" if view.parent_id else None,
    )


def _headline(view: ExperimentView) -> tuple[str, str]:
    """Return the answer, or the question while there is none, and what qualifies it."""
    if view.finding is not None:
        first, colon, rest = view.finding.sentence.partition(": ")
        if view.finding.verdict in _REASON_FOLLOWS:
            rest = rest[:1].upper() + rest[1:]
        return (first + ".", rest) if colon else (view.finding.sentence, "")
    if not view.comparisons:
        return f"What makes {view.victim} fail?", ""
    if len(view.comparisons) > 1:
        return f"Which of {len(view.comparisons)} changes makes a difference to {view.victim}?", ""
    return f"Does {view.victim} fail more or less often {under(view.comparisons[0].change)}?", ""


def progress_words(view: ExperimentView) -> str:
    """Return how far the experiment is, in one line."""
    if view.finding is not None:
        voids = f", {view.voids} void" if view.voids else ""
        took = ""
        if view.finished_at is not None and view.finished_at > view.created_at:
            took = f", in {duration((view.finished_at - view.created_at).total_seconds())}"
        blocks = view.finding.blocks_counted
        return f"{blocks} block{'' if blocks == 1 else 's'} counted{voids}, {view.executions} executions{took}"
    if view.state is ExperimentState.QUEUED:
        return f"At most {view.blocks_max} blocks of {len(view.arms)} runs each, back to back"
    pace = f", about {duration(view.block_s)} each" if view.block_s else ""
    cancelled = " It was cancelled and ends soon." if view.cancel_reason else ""
    return f"{view.blocks_done} of at most {view.blocks_max} blocks complete{pace}.{cancelled}"


def running_words(block: Running) -> str:
    """Return what a running block does now."""
    name = {Purpose.PREPARE: "Preparing the arms", Purpose.PROBE: f"Probe {-block.index - 1}"}.get(
        block.purpose, f"Block {block.index + 1}"
    )
    words = f"{name}: {_PHASES.get(block.phase or '', block.phase or 'starting')}"
    if block.arm_name:
        words += f" {block.arm_name}"
    if block.total:
        words += f", test {min((block.done or 0) + 1, block.total)} of {block.total}"
    if block.test:
        words += f": {block.test}"
    return f"{words} (on {block.host})" if block.host else words


def _strip(view: ExperimentView) -> Strip:
    names = dict(zip((arm.index for arm in view.arms), _labels(view), strict=True))
    stops = {item.arm: item.finding.stop_index if item.finding else None for item in view.comparisons}
    used = {cell.state for attempt in view.attempts for cell in attempt.cells}
    return Strip(
        figure=figures.strip(view.id, view.attempts, names, stops),
        labels=_labels(view),
        legend=tuple(
            LegendEntry(figures.legend_cell(state), figures.CELL_WORDS[state]) for state in CellState if state in used
        ),
        lines=tuple(_line(view, attempt, names) for attempt in view.attempts),
        words=_strip_words(view),
    )


def _labels(view: ExperimentView) -> tuple[str, ...]:
    """Return what the arms are called in figures and tables: the control by its name, others by what they change."""
    return tuple(arm.change or arm.name for arm in view.arms)


def _strip_words(view: ExperimentView) -> str:
    if not view.attempts:
        return "No block has run: " + ("nothing needed to be run." if view.finding else "the arms are prepared first.")
    words = "Columns are blocks in the order of issue, rows are arms, the small digit is the place inside the block."
    if any(attempt.purpose is Purpose.PROBE for attempt in view.attempts):
        words += " A column p is a probe, which fixes the signature and is not counted."
    if view.stop_index is not None and len(view.comparisons) > 1:
        words += " A bar marks the block that settled the arm before it."
    elif view.stop_index is not None:
        words += f" It stopped after block {view.stop_index + 1}."
    if any(attempt.standing is AttemptStanding.AFTER_STOP for attempt in view.attempts):
        words += " Blocks after it are shown, not counted."
    return words


def _line(view: ExperimentView, attempt: AttemptView, names: dict[int, str]) -> BlockLine:
    return BlockLine(
        name=figures.block_name(attempt),
        standing=figures.standing_words(attempt),
        cells=tuple(
            CellLine(
                names[cell.arm],
                figures.CELL_WORDS[cell.state],
                figures.execution_path(view.id, attempt, cell) if cell.duration_s is not None else None,
            )
            for cell in attempt.cells
        ),
    )


def _contexts(view: ContextView, arms: tuple[str, ...]) -> Contexts:
    undeclared, declared = view.count(Standing.UNDECLARED), view.count(Standing.DECLARED)
    drifted = view.count(Standing.DRIFTED)
    equal = view.count(Standing.EQUAL)
    where = "as prepared" if view.block is None else f"in block {view.block + 1}"
    if not view.rows:
        return Contexts("Nothing is known of the contexts yet.", "quiet", arms, ())
    tone = "cause" if undeclared else "caution" if drifted else "clear"
    words = f"{equal} fields equal {where}, {declared} differ as declared, {undeclared} differ undeclared"
    words += f", {drifted} drifted." if drifted else "."
    channels = dict.fromkeys(row.channel for row in view.rows)
    return Contexts(words, tone, arms, tuple(_channel(name, view) for name in channels))


def _channel(name: str, view: ContextView) -> Channel:
    rows = [row for row in view.rows if row.channel == name]
    return Channel(
        name=name,
        differing=tuple(_field(row) for row in rows if row.standing in _DIFFERS),
        rest=tuple(_field(row) for row in rows if row.standing not in _DIFFERS),
    )


def _field(row: FieldRow) -> FieldLine:
    words, tone = _STANDINGS[row.standing]
    return FieldLine(row.name, words, tone, tuple(_value(row, value) for value in row.values))


def _value(row: FieldRow, value: object) -> str:
    """Return a value as text; of a list that differs between arms only what the others lack, and how long it is."""
    if not isinstance(value, list) or row.standing not in _DIFFERS:
        return shown(value)
    others = [set(map(str, other)) for other in row.values if isinstance(other, list) and other is not value]
    own = [str(item) for item in value if others and any(str(item) not in other for other in others)]
    return shown([f"{len(value)} entries", *(f"only here: {item}" for item in own[:8])])


def _settings(view: ExperimentView) -> tuple[Setting, ...]:
    design = view.design
    signature = view.signature
    wanted = [
        ("victim", view.victim),
        *((f"arm {arm.index}, {arm.role}", f"{arm.text or 'full serial suite'} at {arm.commit}") for arm in view.arms),
        ("seed", str(design.seed)),
        (
            "signature",
            "fixed by probes before block 1"
            if signature is None
            else f"{' or '.join(signature.values) or 'any failure'} ({signature.source})",
        ),
        ("alpha, to implicate", f"{design.alpha} over {len(design.treated)} treated arm(s)"),
        ("alpha, to exonerate", str(design.alpha_exonerate)),
        ("margin", str(design.margin)),
        ("most blocks", str(design.blocks_max)),
        ("most attempts of a block", str(design.attempts_max)),
        ("budget", f"{design.budget_executions} executions" if design.budget_executions else "none beyond the blocks"),
        ("tests that not every arm has", design.tests_mode.value),
        ("caches", design.cache_state.value),
        ("history", f"{design.history.failures}/{design.history.runs}" if design.history else "none given"),
        ("source", view.source),
        ("method", view.finding.method_version if view.finding else "set when it ends"),
    ]
    if view.cancel_reason:
        wanted.append(("cancelled", view.cancel_reason))
    return tuple(Setting(name, shown(to_json(value))) for name, value in wanted)
