"""The arms of an experiment in words, with what their preparation showed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.domain import ArmRole
from service.experiments.explain import change
from service.experiments.model import ArmSpec, Design, PreparedEvidence
from service.experiments.treatments import describe, to_text


@dataclass(frozen=True, slots=True)
class ArmView:
    """One arm: `words` says what it is, `change` what distinguishes it from the control, `text` as it is typed."""

    index: int
    name: str
    role: ArmRole
    commit: str
    words: str
    change: str
    text: str
    tests: int | None
    left_out: tuple[str, ...]
    only_here: tuple[str, ...]
    error: str | None


def arm_views(design: Design, prepared: Sequence[PreparedEvidence]) -> tuple[ArmView, ...]:
    """Return the arms with what their preparation showed."""
    known = {arm.arm: arm for arm in prepared}
    return tuple(_arm_view(design, arm, known.get(arm.index)) for arm in design.arms)


def _arm_view(design: Design, arm: ArmSpec, prepared: PreparedEvidence | None) -> ArmView:
    return ArmView(
        index=arm.index,
        name=arm.name,
        role=arm.role,
        commit=arm.commit,
        words=describe(arm.treatments),
        change="" if arm.role is ArmRole.CONTROL else change(design, arm),
        text=to_text(arm.treatments),
        tests=len(prepared.tests) if prepared and prepared.error is None else None,
        left_out=prepared.left_out if prepared else (),
        only_here=prepared.only_here if prepared else (),
        error=prepared.error if prepared else None,
    )
