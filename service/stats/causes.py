"""The causes an order search weighs, and their posterior: none, one unit, an AND-pair, an OR-pair.

The units of a search are the n tests before the victim, or blocks of them. After a subset of the units, in the suite's
own order, the victim shows the event with the high rate if the subset triggers the cause (a single unit is in it, both
units of an AND-pair are, either of an OR-pair is), else with the low rate. Both rates are unknown (`rates.RateGrid`).
The event is a failure when a polluter is searched, and a pass when a state-setter (the victim fails alone) or a cleaner
(the subset runs between polluter and victim) is searched. Model: statistics facts 3b.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from service.stats.rates import FloatArray, RateGrid, evidence, normalise, one_rate, rate_grid

BoolArray = NDArray[np.bool_]

MOST_UNITS = 200


class OrderSearch(StrEnum):
    """What is searched, and so which outcome of the victim is the event."""

    POLLUTER = "polluter"
    STATE_SETTER = "state_setter"
    CLEANER = "cleaner"

    @property
    def event_is_failure(self) -> bool:
        """A polluter makes the victim fail; a state-setter and a cleaner make it pass."""
        return self is OrderSearch.POLLUTER


class CauseKind(StrEnum):
    """How the units of a cause work together."""

    NONE = "none"
    SINGLE = "single"
    AND = "and"
    OR = "or"


@dataclass(frozen=True, slots=True)
class Cause:
    """A kind and its units: none, one or two indices."""

    kind: CauseKind
    units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OrderPlan:
    """How a search is run: fixed before its first run and stored with the experiment.

    `unit_time` [n] and `victim_time` in any unit (None: all alike); `relevance` [n] weighs the units a priori. Of the
    cost of one run the share `fixed_cost` of a full suite's time is paid whatever the subset; 1.0 ignores time.
    """

    n_units: int
    search: OrderSearch = OrderSearch.POLLUTER
    none: float = 0.05
    single: float = 0.80
    and_pair: float = 0.12
    or_pair: float = 0.03
    stop: float = 0.95
    relevance: tuple[float, ...] | None = None
    unit_time: tuple[float, ...] | None = None
    victim_time: float = 1.0
    fixed_cost: float = 0.6
    grid: RateGrid = field(default_factory=lambda: rate_grid((0.3, 6.0), (1.0, 1.0), 12))

    def __post_init__(self) -> None:
        if not 1 <= self.n_units <= MOST_UNITS:
            raise ValueError(
                f"{self.n_units} units: search among 1 to {MOST_UNITS}, put tests into blocks by file first"
            )
        shares = (self.none, self.single, self.and_pair, self.or_pair)
        if min(shares) < 0 or self.single <= 0 or not np.isclose(sum(shares), 1.0):
            raise ValueError(f"none, single, and_pair and or_pair must sum to 1 with single above 0, got {shares}")
        if not 0.5 < self.stop < 1:
            raise ValueError(f"stop must lie in (0.5, 1), got {self.stop}")
        for name in ("relevance", "unit_time"):
            values = getattr(self, name)
            if values is not None and (len(values) != self.n_units or min(values) <= 0):
                raise ValueError(f"{name} needs {self.n_units} numbers above 0, got {values!r}")
        if not 0 < self.fixed_cost <= 1 or self.victim_time < 0:
            raise ValueError(f"fixed_cost {self.fixed_cost} must lie in (0, 1], victim_time {self.victim_time} be >= 0")

    def time_share(self, subsets: BoolArray) -> FloatArray:
        """Time of the subsets [..., n] with the victim, as a share of the full suite's time."""
        times = np.ones(self.n_units) if self.unit_time is None else np.array(self.unit_time)
        share: FloatArray = (subsets @ times + self.victim_time) / (times.sum() + self.victim_time)
        return share


@dataclass(frozen=True, slots=True, eq=False)
class CauseTable:
    """All causes of n units: `kind` index, units `i`, `j` (equal for a single), `log_prior`; "none" comes first."""

    kind: NDArray[np.int8]
    i: NDArray[np.intp]
    j: NDArray[np.intp]
    log_prior: FloatArray

    def cause(self, h: int) -> Cause:
        """The cause number h."""
        kind = _KINDS[self.kind[h]]
        return Cause(kind, () if kind is CauseKind.NONE else tuple(sorted({int(self.i[h]), int(self.j[h])})))

    def number(self, cause: Cause) -> int:
        """The number of a cause; ValueError if the plan gives it no prior."""
        if cause.kind is CauseKind.NONE:
            return 0
        units = (cause.units[0], cause.units[-1])
        at = np.flatnonzero((self.kind == _KINDS.index(cause.kind)) & (self.i == units[0]) & (self.j == units[1]))
        if at.size != 1 or len(cause.units) != (1 if cause.kind is CauseKind.SINGLE else 2):
            raise ValueError(f"{cause} is not among the hypotheses of this plan")
        return int(at[0])


_KINDS = (CauseKind.NONE, CauseKind.SINGLE, CauseKind.AND, CauseKind.OR)


@lru_cache(maxsize=16)
def cause_table(plan: OrderPlan) -> CauseTable:
    """The hypotheses of a plan and their prior: each kind's share, spread by the product of the units' relevance."""
    n = plan.n_units
    weight = np.ones(n) if plan.relevance is None else np.array(plan.relevance)
    single, (i, j) = np.arange(n), np.triu_indices(n, 1)
    first = np.zeros(1, np.intp)
    parts = [(0, first, first, np.ones(1), plan.none), (1, single, single, weight, plan.single)]
    pairs = [(2, plan.and_pair), (3, plan.or_pair)] if n > 1 else []
    parts += [(kind, i, j, weight[i] * weight[j], share) for kind, share in pairs if share > 0]
    with np.errstate(divide="ignore"):
        log_prior = np.concatenate([np.log(share * w / w.sum()) for _, _, _, w, share in parts])
    kind = np.concatenate([np.full(len(a), k, np.int8) for k, a, _, _, _ in parts])
    return CauseTable(kind, np.concatenate([p[1] for p in parts]), np.concatenate([p[2] for p in parts]), log_prior)


@dataclass(frozen=True, slots=True, eq=False)
class OrderPosterior:
    """Per cause of the plan's table: probability, and the mean event rates without (old) and with (new) the trigger."""

    weight: FloatArray
    mean_old: FloatArray
    mean_new: FloatArray


def order_posterior(plan: OrderPlan, subsets: BoolArray, runs: FloatArray, fails: FloatArray) -> OrderPosterior:
    """The posterior over the causes from subsets [R, n] with `runs` [R] and `fails` [R]."""
    table = cause_table(plan)
    events = fails if plan.search.event_is_failure else runs - fails
    s = subsets.astype(float)
    all_runs, all_events = float(runs.sum()), float(events.sum())
    n1, e1 = (_triggered(table, s, x) for x in (runs, events))
    # Few different pairs of counts occur: each is evaluated once.
    unique, back = np.unique(np.round(n1 * (all_runs + 1) + e1), return_inverse=True)
    n1, e1 = np.divmod(unique, all_runs + 1)
    found = evidence(plan.grid, all_events - e1, all_runs - n1 - all_events + e1, e1, n1 - e1)
    flat = evidence(one_rate(plan.grid), 0, 0, all_events, all_runs - all_events)
    log_likelihood, mean_old, mean_new = (
        np.append(flat_value, each[back][1:])
        for flat_value, each in (
            (flat.log_likelihood, found.log_likelihood),
            (flat.mean_new, found.mean_old),
            (flat.mean_new, found.mean_new),
        )
    )
    return OrderPosterior(normalise(table.log_prior + log_likelihood), mean_old, mean_new)


def _triggered(table: CauseTable, s: FloatArray, count: FloatArray) -> FloatArray:
    """Sum of `count` [R] over the subsets s [R, n] that trigger each cause."""
    both = (s * count[:, None]).T @ s
    either = both.diagonal()[:, None] + both.diagonal() - both
    of_pair = np.where(table.kind == 3, either[table.i, table.j], both[table.i, table.j])
    return np.where(table.kind == 0, 0.0, of_pair)


def unit_probability(plan: OrderPlan, posterior: OrderPosterior) -> FloatArray:
    """The probability [n] that each unit takes part in the cause."""
    table = cause_table(plan)
    mass = np.zeros(plan.n_units)
    some, pair = table.kind > 0, table.kind > 1
    np.add.at(mass, table.i[some], posterior.weight[some])
    np.add.at(mass, table.j[pair], posterior.weight[pair])
    return mass
