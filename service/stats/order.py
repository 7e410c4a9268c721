"""Which preceding tests change the victim's outcome: noisy group testing with pairs and time.

The causes and their posterior are in `causes`. For every cause the trigger is s_i, s_i s_j or s_i + s_j - s_i s_j in
the indicators s of the subset, so that an expectation over all causes is one quadratic form, and the next subset is
found by steepest ascent on its information for its time instead of by sampling subsets.

Assumes that the cause is among the hypotheses and that runs are independent. The claimed probability is held against
the accuracy in `tests/calibration`. A found cause is confirmed by A/Bs: the full suite against the suite without it,
and the cause with the victim against the victim alone; their counts are further runs of the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from service.stats.causes import (
    MOST_UNITS,
    BoolArray,
    Cause,
    CauseKind,
    CauseTable,
    OrderPlan,
    OrderPosterior,
    cause_table,
    order_posterior,
    unit_probability,
)
from service.stats.rates import FloatArray, binary_entropy

_STARTS = 64
_CLIMBERS = 4
_ROWS = np.arange(_CLIMBERS)
_MOST_ASCENT_STEPS = 60
_NEGLIGIBLE = 1e-6
_FAILED_CONFIRMATIONS = 2


@dataclass(frozen=True, slots=True)
class SubsetRuns:
    """`runs` executions of the victim after the units in `subset`, of which `fails` failed with the signature."""

    subset: frozenset[int]
    runs: int
    fails: int

    def __post_init__(self) -> None:
        if not 0 <= self.fails <= self.runs:
            raise ValueError(f"{self.fails} failures in {self.runs} runs of the subset {sorted(self.subset)}")


class OrderStep(StrEnum):
    """What a search does next."""

    RUN = "run"
    CONFIRM = "confirm"
    NO_CAUSE = "no_cause"
    COULD_NOT_TELL = "could_not_tell"


@dataclass(frozen=True, slots=True)
class OrderChoice:
    """The next step and what is known so far.

    RUN: the victim after `subset`. CONFIRM: A/Bs of `best`. `ranked` lists the likeliest causes with their posterior
    probability, up to 90 % or ten; `unit_probability` [n] is the probability that a unit takes part in the cause.
    """

    step: OrderStep
    best: Cause
    probability: float
    ranked: tuple[tuple[Cause, float], ...]
    unit_probability: tuple[float, ...]
    subset: tuple[int, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class _Quadratic:
    """constant + s.linear + s' pairs s, with a symmetric matrix of zero diagonal."""

    constant: float
    linear: FloatArray
    pairs: FloatArray

    def among(self, units: NDArray[np.intp]) -> _Quadratic:
        """The form over some units, the others being out of the subset."""
        return _Quadratic(self.constant, self.linear[units], self.pairs[np.ix_(units, units)])

    def value(self, s: FloatArray) -> FloatArray:
        """Values [C] at subsets s [C, n]."""
        values: FloatArray = self.constant + s @ self.linear + ((s @ self.pairs) * s).sum(-1)
        return values

    def rise(self, s: FloatArray) -> FloatArray:
        """The change [C, n] of the value when a unit of s [C, n] comes in; its negative when the unit goes out."""
        rise: FloatArray = self.linear + 2 * (s @ self.pairs)
        return rise


def _quadratic(table: CauseTable, n: int, low: FloatArray, high: FloatArray) -> _Quadratic:
    """The sum over causes of `low` without and `high` with the trigger."""
    rise = high - low
    linear, pairs = np.zeros(n), np.zeros((n, n))
    single, conj, disj = (table.kind == k for k in (1, 2, 3))
    np.add.at(linear, table.i[single], rise[single])
    for members in (table.i[disj], table.j[disj]):
        np.add.at(linear, members, rise[disj])
    pairs[table.i[conj], table.j[conj]] += rise[conj] / 2
    pairs[table.i[disj], table.j[disj]] -= rise[disj] / 2
    return _Quadratic(float(low.sum()), linear, pairs + pairs.T)


def best_subset(plan: OrderPlan, posterior: OrderPosterior, rng: np.random.Generator) -> tuple[BoolArray, float]:
    """The subset [n] with the most information about the cause for its time that steepest ascent finds, and its gain.

    The gain is in nats, H(event) - E H(event | cause); the cost is fixed_cost + (1 - fixed_cost) * time share. Half of
    the random starts contain a cause drawn from the posterior. Units that can hardly take part are left out.

    Source: Lindley 1956, Annals of Mathematical Statistics 27:986-1005, for the information. Assumptions as in the
    module. Guarantee: none, steepest ascent may end below the best subset.
    """
    table, n = cause_table(plan), plan.n_units
    w, old, new = posterior.weight, posterior.mean_old, posterior.mean_new
    active = np.flatnonzero(unit_probability(plan, posterior) > _NEGLIGIBLE)
    event = _quadratic(table, n, w * old, w * new).among(active)
    known = _quadratic(table, n, w * binary_entropy(old), w * binary_entropy(new)).among(active)
    times = np.ones(n) if plan.unit_time is None else np.array(plan.unit_time)
    unit_cost = (1 - plan.fixed_cost) * times[active] / (times.sum() + plan.victim_time)
    base_cost = plan.fixed_cost + (1 - plan.fixed_cost) * plan.victim_time / (times.sum() + plan.victim_time)

    full = np.zeros((_STARTS, n))
    full[:, active] = rng.random((_STARTS, active.size)) < rng.uniform(0.05, 0.95, (_STARTS, 1))
    drawn = np.minimum(np.searchsorted(np.cumsum(w), rng.random(_STARTS // 2) * w.sum()), w.size - 1)
    row = np.flatnonzero(table.kind[drawn] > 0)
    full[row, table.i[drawn[row]]] = full[row, table.j[drawn[row]]] = 1.0
    starts = full[:, active]
    start_score = (binary_entropy(event.value(starts)) - known.value(starts)) / (base_cost + starts @ unit_cost)
    s = starts[np.argsort(-start_score, kind="stable")[:_CLIMBERS]]

    # Per climber: both forms' values and gradients, the cost, and d = +1 where a unit would come in, -1 where out.
    d = 1 - 2 * s
    p, h = event.value(s), known.value(s)
    p_rise, h_rise = event.rise(s), known.rise(s)
    cost = base_cost + s @ unit_cost
    score = (binary_entropy(p) - h) / cost
    for _ in range(_MOST_ASCENT_STEPS):
        p_flips, h_flips = p[:, None] + d * p_rise, h[:, None] + d * h_rise
        flips = (binary_entropy(p_flips) - h_flips) / (cost[:, None] + d * unit_cost)
        unit = flips.argmax(1)
        row = np.flatnonzero(flips[_ROWS, unit] > score + 1e-12)
        if not row.size:
            break
        unit = unit[row]
        p[row], h[row], score[row] = p_flips[row, unit], h_flips[row, unit], flips[row, unit]
        step = d[row, unit]
        cost[row] += step * unit_cost[unit]
        p_rise[row] += step[:, None] * event.pairs[unit] * 2
        h_rise[row] += step[:, None] * known.pairs[unit] * 2
        d[row, unit] = -step
    top = int(score.argmax())
    subset = np.zeros(n, bool)
    subset[active] = d[top] < 0
    return subset, float(score[top] * cost[top])


def next_choice(
    plan: OrderPlan,
    found: Sequence[SubsetRuns],
    rng: np.random.Generator,
    runs_left: int | None = None,
    unconfirmed: Sequence[Cause] = (),
) -> OrderChoice:
    """The next step of a search, recomputed from all runs so far: pure, given the generator's state.

    `found` holds everything run at this commit and context: full suites, the victim alone, the confirming A/Bs.
    `unconfirmed` lists the causes whose confirming A/B did not implicate: one raises the bar, a second ends the search.

    Confirms once the best cause has probability 1 - (1 - stop) / 4^(its failed confirmations). Source: Bayes' theorem
    (`causes.order_posterior`); Lindley 1956 for the next subset. Assumptions as in the module. Guarantee: none proven,
    the stated probability is a posterior; a claim comes only from the confirming A/B.
    """
    subsets = np.zeros((len(found), plan.n_units), bool)
    for row, each in zip(subsets, found, strict=True):
        members = sorted(each.subset)
        if members and not 0 <= members[0] <= members[-1] < plan.n_units:
            raise ValueError(f"the subset {members} has units outside 0..{plan.n_units - 1}")
        row[members] = True
    runs, fails = (np.array([getattr(each, name) for each in found], float) for name in ("runs", "fails"))
    posterior = order_posterior(plan, subsets, runs, fails)
    table = cause_table(plan)
    order = np.argsort(-posterior.weight, kind="stable")[:10]
    n_ranked = int(np.searchsorted(np.cumsum(posterior.weight[order]), 0.9)) + 1
    ranked = tuple((table.cause(int(h)), float(posterior.weight[h])) for h in order[:n_ranked])
    best, probability = ranked[0]
    takes_part = tuple(map(float, np.minimum(unit_probability(plan, posterior), 1.0)))
    known = OrderChoice(OrderStep.COULD_NOT_TELL, best, probability, ranked, takes_part)
    refuted = unconfirmed.count(best)
    if refuted >= _FAILED_CONFIRMATIONS:
        return replace(known, reason=f"{refuted} confirming A/Bs of {best.kind} {best.units} did not implicate")
    if probability >= 1 - (1 - plan.stop) / 4**refuted:
        if best.kind is CauseKind.NONE:
            return replace(known, step=OrderStep.NO_CAUSE, reason="no subset changes the rate of the event")
        return replace(known, step=OrderStep.CONFIRM)
    if runs_left is not None and runs_left < 1:
        return replace(known, reason="the budget of runs is spent")
    subset, gain = best_subset(plan, posterior, rng)
    if gain < _NEGLIGIBLE:
        return replace(known, reason="no subset of these units tells the remaining causes apart")
    return replace(known, step=OrderStep.RUN, subset=tuple(map(int, np.flatnonzero(subset))))


def blocks_by_file(files: Sequence[str], most: int = MOST_UNITS) -> tuple[tuple[int, ...], ...]:
    """Tests 0..len(files)-1 put into at most `most` units, in order: one each if they fit, else neighbours of one file.

    When there are more runs of a file than `most`, neighbouring files share a unit. Search the units first, then the
    tests of the winning units.
    """
    if most < 1:
        raise ValueError(f"most must be at least 1, got {most}")
    if len(files) <= most:
        return tuple((i,) for i in range(len(files)))
    starts = [i for i, name in enumerate(files) if i == 0 or name != files[i - 1]]
    if len(starts) > most:
        starts = [starts[len(starts) * k // most] for k in range(most)]
    ends = [*starts[1:], len(files)]
    return tuple(tuple(range(a, b)) for a, b in zip(starts, ends, strict=True))
