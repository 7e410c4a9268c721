"""More than one treated arm: a group screen that finds the one toggle, and error control where all are tested.

Screening. With K toggles that combine, one run can apply several. Each run applies the toggles outside a subset; it
fails at the high rate while the guilty feature is left in, else at the low one. That is a search for one of K units
(`order`), with the features left in as the subset. It stops early, at posterior 0.8, because its answer is only a
candidate: the winner alone goes through a confirming A/B in full context, which carries the error rate.

Testing all. Arms that share a control are dependent, so that only methods free of dependence assumptions are used:
Bonferroni levels with Holm's step-down (Holm 1979, Scand. J. Statist. 6:65-70), for p-values and for boundaries built
at alpha / K, alpha / (K - 1), .. alpha. Guarantee: the probability of any false claim is at most alpha.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from service.stats.causes import OrderPlan
from service.stats.order import OrderChoice, OrderStep, SubsetRuns, next_choice
from service.stats.rates import FloatArray, rate_grid


@dataclass(frozen=True, slots=True)
class ToggleRuns:
    """`runs` executions with the toggles in `applied`, of which `fails` failed with the signature."""

    applied: frozenset[int]
    runs: int
    fails: int


@dataclass(frozen=True, slots=True)
class ScreenChoice:
    """The next step of a screen: RUN with the toggles `applied`, CONFIRM `winner` by an A/B, or an end without one.

    `probability` [K] is the posterior of each toggle being the one that cures.
    """

    step: OrderStep
    applied: tuple[int, ...]
    winner: int | None
    probability: tuple[float, ...]
    reason: str = ""


@lru_cache(maxsize=32)
def screen_plan(n_toggles: int, stop: float = 0.8, none: float = 0.2) -> OrderPlan:
    """The search plan of a screen: no toggle cures with prior `none`, else each alike; runs cost the same.

    The rate that remains with the cure has the prior Beta(0.5, 2) (facts 2.5).
    """
    grid = rate_grid((0.5, 2.0), (1.0, 1.0), 12)
    return OrderPlan(
        n_toggles, none=none, single=1 - none, and_pair=0.0, or_pair=0.0, stop=stop, fixed_cost=1.0, grid=grid
    )


def next_screen_choice(
    plan: OrderPlan, found: Sequence[ToggleRuns], rng: np.random.Generator, runs_left: int | None = None
) -> ScreenChoice:
    """The next step of a screen of `plan.n_units` toggles, from all its runs: pure, given the generator's state.

    NO_CAUSE and COULD_NOT_TELL clear no toggle: a screen can nominate, not exonerate.
    """
    every = frozenset(range(plan.n_units))
    strangers = frozenset().union(*(each.applied for each in found)) - every
    if strangers:
        raise ValueError(f"toggles {sorted(strangers)} are outside 0..{plan.n_units - 1}")
    left_in = [SubsetRuns(every - each.applied, each.runs, each.fails) for each in found]
    choice: OrderChoice = next_choice(plan, left_in, rng, runs_left)
    applied = tuple(sorted(every - set(choice.subset))) if choice.step is OrderStep.RUN else ()
    winner = choice.best.units[0] if choice.step is OrderStep.CONFIRM else None
    return ScreenChoice(choice.step, applied, winner, choice.unit_probability, choice.reason)


def holm_levels(n_arms: int, alpha: float) -> tuple[float, ...]:
    """The levels alpha / K, alpha / (K - 1), .. alpha of Holm's steps; build one boundary for each."""
    if n_arms < 1 or not 0 < alpha < 1:
        raise ValueError(f"needs at least one arm and alpha in (0, 1), got {n_arms} and {alpha}")
    return tuple(alpha / (n_arms - step) for step in range(n_arms))


def holm_claims(crossed: ArrayLike) -> NDArray[np.bool_]:
    """Which of K arms are claimed, from `crossed` [K, K]: arm i crossed its boundary of level `holm_levels`[j].

    Step j claims an arm that crossed at level j among those not yet claimed; the first step that claims none ends it.
    """
    table = np.asarray(crossed, bool)
    if table.ndim != 2 or table.shape[0] != table.shape[1]:
        raise ValueError(f"crossed has shape {table.shape}, expected [arms, levels] with as many levels as arms")
    claimed = np.zeros(len(table), bool)
    for step in range(len(table)):
        ready = np.flatnonzero(table[:, step] & ~claimed)
        if not ready.size:
            break
        claimed[ready[0]] = True
    return claimed


def holm_adjusted(p_values: ArrayLike) -> FloatArray:
    """Holm's adjusted p-values in the given order: reject where they are at most alpha."""
    p = np.asarray(p_values, float)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p-values must be a list of numbers in [0, 1], got {p_values!r}")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)), 1.0)
    return adjusted
