"""The contexts of an experiment's arms beside each other: what was equal, what was declared, what nobody declared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from sqlalchemy.orm import Session

from gpu_runner.protocol import ContextClass, ContextField, TestsMode
from service.domain import Purpose
from service.experiments.contexts import state_violations
from service.experiments.evidence import read_blocks
from service.experiments.model import ArmSpec, Design, Difference, Evidence, Finding
from service.experiments.treatments import declared_fields
from service.store.evidence import latest_finding, load_evidence
from service.store.experiments import design_of, get

_Key = tuple[str, str]


class Standing(StrEnum):
    """How the values of one field relate. DRIFTED: a state field beyond its tolerance; OBSERVED: never compared."""

    EQUAL = "equal"
    DECLARED = "declared"
    UNDECLARED = "undeclared"
    DRIFTED = "drifted"
    OBSERVED = "observed"


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One field: the value in every arm, in the order of the arms; None where an arm did not report it."""

    channel: str
    name: str
    context_class: ContextClass
    standing: Standing
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ContextView:
    """The fields of one block. `block` is its index, None when only the preparation is known.

    Shown is the first block in which something differs that nobody declared, else the newest complete one of most arms.
    """

    experiment: int
    block: int | None
    arms: tuple[str, ...]
    rows: tuple[FieldRow, ...]

    def count(self, standing: Standing) -> int:
        """Return how many fields stand so."""
        return sum(row.standing is standing for row in self.rows)


def context_view(session: Session, experiment_id: int) -> ContextView:
    """Return the arms' contexts field by field; NotFoundError when there is no such experiment."""
    experiment = get(session, experiment_id)
    design = design_of(experiment)
    finding = latest_finding(session, experiment_id)
    return compare_contexts(experiment_id, design, load_evidence(session, experiment), finding)


def compare_contexts(
    experiment_id: int, design: Design, evidence: Evidence, finding: Finding | None = None
) -> ContextView:
    """Return the comparison for the block that is shown; without any block, of what the preparation showed.

    What the finding holds against the arms is undeclared here too, whatever the shown block says.
    """
    view = _view_of_block(experiment_id, design, evidence)
    if finding is None:
        return view
    held = {(found.channel, found.name): found for arm in finding.arms for found in arm.differences}
    rows = {(row.channel, row.name): row for row in view.rows}
    rows |= {key: _held(rows.get(key), found, view.arms) for key, found in held.items()}
    return replace(view, rows=tuple(rows[key] for key in sorted(rows)))


def _held(row: FieldRow | None, found: Difference, arms: tuple[str, ...]) -> FieldRow:
    """Return the field as the finding holds it against an arm; a value that changed between blocks shows both."""
    if row is not None and row.standing in (Standing.UNDECLARED, Standing.DRIFTED):
        return row
    if row is not None and row.standing is Standing.DECLARED:
        return replace(row, standing=Standing.UNDECLARED)
    values = list(row.values) if row is not None else [None] * len(arms)
    if row is None:
        values[0], values[found.arm] = found.control, found.treated
    else:
        values[found.arm] = f"{found.control}, in a later block {found.treated}"
    kind = row.context_class if row is not None else ContextClass.IDENTITY
    return FieldRow(found.channel, found.name, kind, Standing.UNDECLARED, tuple(values))


def _view_of_block(experiment_id: int, design: Design, evidence: Evidence) -> ContextView:
    names = tuple(arm.name for arm in design.arms)
    blocks = [
        (index, {arm: execution.context for arm, execution in by_arm.items()})
        for index, by_arm in read_blocks(evidence, Purpose.COUNT, design.attempts_max).counted
    ]
    shown: ContextView | None = None
    most = 0
    for index, contexts in blocks:
        view = ContextView(experiment_id, index, names, _rows(design, contexts))
        if view.count(Standing.UNDECLARED):
            return view
        if len(contexts) >= most:
            shown, most = view, len(contexts)
    if shown is not None:
        return shown
    prepared = {arm.arm: arm.context for arm in evidence.prepared}
    return ContextView(experiment_id, None, names, _rows(design, prepared))


def _rows(design: Design, contexts: Mapping[int, Sequence[ContextField]]) -> tuple[FieldRow, ...]:
    classes: dict[_Key, ContextClass] = {}
    values: dict[int, dict[_Key, Any]] = {}
    for arm, fields in contexts.items():
        for field in fields:
            classes.setdefault((field.channel, field.name), field.context_class)
            values.setdefault(arm, {})[field.channel, field.name] = field.value
    drifted = {(v.channel, v.name) for v in state_violations(tuple(fields) for fields in contexts.values())}
    declared = {arm.index: _declared(design, arm) for arm in design.treated}
    return tuple(
        FieldRow(
            channel=key[0],
            name=key[1],
            context_class=classes[key],
            standing=_standing(key, classes[key], values, declared, is_drifted=key in drifted),
            values=tuple(values.get(arm.index, {}).get(key) for arm in design.arms),
        )
        for key in sorted(classes)
    )


def _declared(design: Design, arm: ArmSpec) -> frozenset[_Key]:
    as_built = design.tests_mode is TestsMode.AS_BUILT
    return declared_fields(arm.treatments, as_built=as_built) | declared_fields(
        design.control.treatments, as_built=as_built
    )


def _standing(
    key: _Key,
    context_class: ContextClass,
    values: Mapping[int, Mapping[_Key, Any]],
    declared: Mapping[int, frozenset[_Key]],
    *,
    is_drifted: bool,
) -> Standing:
    if context_class is ContextClass.OBSERVED:
        return Standing.OBSERVED
    if context_class is ContextClass.STATE:
        return Standing.DRIFTED if is_drifted else Standing.EQUAL
    control = _comparable(values.get(0, {}).get(key))
    differs = [arm for arm in values if arm != 0 and _comparable(values[arm].get(key)) != control]
    if not differs:
        return Standing.EQUAL
    return Standing.DECLARED if all(key in declared.get(arm, frozenset()) for arm in differs) else Standing.UNDECLARED


def _comparable(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
