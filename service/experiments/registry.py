"""The kinds of experiments. A kind is one file with a pure `next_step(design, evidence)` and one line here."""

from __future__ import annotations

from collections.abc import Callable

from service.errors import NotFoundError
from service.experiments import ab
from service.experiments.model import Design, Evidence, Step

KINDS: dict[str, Callable[[Design, Evidence], Step]] = {
    "ab": ab.next_step,
}


def next_step(kind: str, design: Design, evidence: Evidence) -> Step:
    """Return the next step of an experiment of this kind; NotFoundError for an unknown one."""
    if kind not in KINDS:
        raise NotFoundError("kind of experiment", kind, f"Known: {', '.join(sorted(KINDS))}.")
    return KINDS[kind](design, evidence)
