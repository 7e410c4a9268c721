"""Two observed counts compared at a fixed sample size: exact tests, odds ratio, interval, and the plain sentence."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from service.stats.chan_zhang import binomial_pmf
from service.stats.intervals import Interval, check_count, difference_interval
from service.stats.score import BISECTIONS, Floats

MOST_RUNS_BOSCHLOO = 100
MOST_RUNS = 10_000_000  # of a sample; the exact laws hold one number per possible count
NUISANCE_POINTS = 201
TIE = 1e-7  # relative; tables as likely as the observed one differ by rounding only
LEFT_OUT_BOSCHLOO = f"Boschloo's test is left out above {MOST_RUNS_BOSCHLOO} runs in both samples together"
NO_RUNS = "a sample has no runs: nothing can be compared"


@dataclass(frozen=True, slots=True)
class OddsRatio:
    """Conditional maximum likelihood odds ratio and exact limits, in [0, inf]; None where every value fits (0 / 0)."""

    estimate: float | None
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything about k1 of n1 against k2 of n2; p-values are two-sided, None when `left_out` says why."""

    k1: int
    n1: int
    k2: int
    n2: int
    difference: Interval
    p_fisher: float | None
    p_boschloo: float | None
    odds_ratio: OddsRatio
    left_out: tuple[str, ...]
    sentence: str


def compare(k1: int, n1: int, k2: int, n2: int, *, noun: str = "pass rate", confidence: float = 0.95) -> Comparison:
    """The comparison of k1 of n1 with k2 of n2; `noun` names in the sentence what is counted.

    Assumes independent runs and sample sizes fixed beforehand: looking again after every run needs the sequential
    boundary instead (a look after each of 5 to 60 blocks raises a 5 % Fisher test to 14 %). ValueError for a count
    above its runs or a sample of more than 10,000,000 runs.

    Source and guarantee: those of `fisher`, `boschloo`, `odds_ratio` and `difference_interval`, all at fixed n.
    """
    check_count(k1, n1)
    check_count(k2, n2)
    if max(n1, n2) > MOST_RUNS:
        raise ValueError(f"{max(n1, n2)} runs: exact comparisons take samples of at most {MOST_RUNS:,}")
    difference = difference_interval(k1, n1, k2, n2, confidence)
    ratio = odds_ratio(k1, n1, k2, n2, confidence)
    p_fisher = p_boschloo = None
    left_out: tuple[str, ...] = ()
    if n1 == 0 or n2 == 0:
        left_out = (NO_RUNS,)
    else:
        p_fisher = fisher(k1, n1, k2, n2)
        if n1 + n2 <= MOST_RUNS_BOSCHLOO:
            p_boschloo = boschloo(k1, n1, k2, n2)
        else:
            left_out = (LEFT_OUT_BOSCHLOO,)
    sentence = _sentence(noun, (k1, n1, k2, n2), difference, p_fisher if p_boschloo is None else p_boschloo)
    return Comparison(k1, n1, k2, n2, difference, p_fisher, p_boschloo, ratio, left_out, sentence)


def fisher(k1: int, n1: int, k2: int, n2: int) -> float:
    """Two-sided p-value of Fisher's exact test: the sum over tables at most as likely as the observed one.

    Level at most nominal, conservative (true size 0.027 at 0.05 and 20 runs each). 1 when an arm is empty.
    Source: Fisher 1935, JRSS 98:39-82; Freeman and Halton 1951 for the two-sided form.

    >>> round(fisher(18, 20, 7, 20), 7)
    0.0007716
    """
    check_count(k1, n1)
    check_count(k2, n2)
    first, log_weights = _conditional(k1 + k2, n1, n2)
    weights = np.exp(log_weights)
    probability = weights / weights.sum()
    observed = probability[k1 - first[0]]
    return min(float(probability[probability <= observed * (1 + TIE)].sum()), 1.0)


def boschloo(k1: int, n1: int, k2: int, n2: int) -> float:
    """Two-sided p-value of Boschloo's exact test: twice the smaller one-sided p-value, at most 1.

    Unconditional: tables ordered by the one-sided Fisher p-value, the nuisance rate maximised. Level at most nominal
    (true size 0.043 at 0.05 and 20 runs each). 1 when an arm is empty. Source: Boschloo 1970, Statistica Neerlandica
    24:1-35.

    >>> round(boschloo(18, 20, 7, 20), 7)
    0.0002773
    """
    check_count(k1, n1)
    check_count(k2, n2)
    if n1 == 0 or n2 == 0:
        return 1.0
    return min(2 * min(boschloo_greater(k1, n1, k2, n2), boschloo_greater(k2, n2, k1, n1)), 1.0)


def boschloo_greater(k1: int, n1: int, k2: int, n2: int) -> float:
    """One-sided p-value of Boschloo's exact test of p1 > p2; needs n1, n2 >= 1.

    The largest probability, over one common rate, of tables whose one-sided Fisher p-value is at most the observed one.
    Source: Boschloo 1970, Statistica Neerlandica 24:1-35. Assumes independent runs, one rate per sample. Guarantee:
    level at most nominal at fixed n, up to the search for the largest.
    """
    table = fisher_greater_table(n1, n2)
    is_extreme = (table <= table[k1, k2] * (1 + TIE)).astype(np.float64)

    def tail(rates: Floats) -> Floats:
        probability: Floats = np.sum((binomial_pmf(n1, rates) @ is_extreme) * binomial_pmf(n2, rates), axis=1)
        return probability

    angles = np.linspace(0.0, np.pi, NUISANCE_POINTS)
    width = angles[1]
    largest = 0.0
    # A coarse grid finds the hill, four finer ones its top.
    for _ in range(5):
        tails = tail((1 - np.cos(angles)) / 2)
        largest = max(largest, float(tails.max()))
        top = angles[int(np.argmax(tails))]
        angles = np.clip(np.linspace(top - width, top + width, 41), 0.0, np.pi)
        width /= 20
    return min(largest, 1.0)


def fisher_greater_table(n1: int, n2: int) -> Floats:
    """One-sided Fisher p-values of p1 > p2 of every table, shape [n1 + 1, n2 + 1].

    P(K1 >= k1 | k1 + k2), hypergeometric. Source: Fisher 1935, JRSS 98:39-82. Assumes independent runs, one rate per
    sample. Guarantee: level at most nominal at fixed n.
    """
    p_values = np.empty((n1 + 1, n2 + 1))
    for total in range(n1 + n2 + 1):
        first, log_weights = _conditional(total, n1, n2)
        tails = np.cumsum(np.exp(log_weights[::-1]))[::-1]
        p_values[first, total - first] = tails / tails[0]
    return p_values


def boschloo_greater_table(n1: int, n2: int) -> Floats:
    """One-sided Boschloo p-values of p1 > p2 of every table, shape [n1 + 1, n2 + 1], nuisance at 201 points.

    Source, assumption and guarantee as in `boschloo_greater`, up to the coarser grid.
    """
    order_by = fisher_greater_table(n1, n2).ravel()
    order = np.argsort(order_by, kind="stable")
    ordered = order_by[order]
    last_tied = np.searchsorted(ordered, ordered * (1 + TIE), side="right") - 1
    rates = (1 - np.cos(np.linspace(0.0, np.pi, NUISANCE_POINTS))) / 2
    joint = binomial_pmf(n1, rates)[:, :, None] * binomial_pmf(n2, rates)[:, None, :]
    tails = np.cumsum(joint.reshape(len(rates), -1)[:, order], axis=1)
    p_values = np.empty_like(ordered)
    p_values[order] = np.minimum(np.max(tails, axis=0)[last_tied], 1.0)
    return p_values.reshape(n1 + 1, n2 + 1)


def odds_ratio(k1: int, n1: int, k2: int, n2: int, confidence: float = 0.95) -> OddsRatio:
    """Conditional odds ratio of sample 1 against sample 2 with exact limits.

    The estimate maximises the noncentral hypergeometric likelihood of k1 given k1 + k2; the limits invert its two
    one-sided tests, coverage at least `confidence`, fixed n. Source: Cornfield 1956; Fisher 1962.
    """
    check_count(k1, n1)
    check_count(k2, n2)
    first, log_weights = _conditional(k1 + k2, n1, n2)
    if len(first) == 1:
        return OddsRatio(None, 0.0, math.inf)
    tail = (1 - confidence) / 2

    def law(log_odds: float) -> Floats:
        terms = log_weights + first * log_odds
        likelihood = np.exp(terms - terms.max())
        probability: Floats = likelihood / likelihood.sum()
        return probability

    is_lowest, is_highest = k1 == first[0], k1 == first[-1]
    if is_lowest or is_highest:
        estimate = 0.0 if is_lowest else math.inf
    else:
        estimate = _increasing_root(lambda x: float(law(x) @ first) - k1)
    lower = 0.0 if is_lowest else _increasing_root(lambda x: float(law(x)[first >= k1].sum()) - tail)
    upper = math.inf if is_highest else _increasing_root(lambda x: tail - float(law(x)[first <= k1].sum()))
    return OddsRatio(estimate, lower, upper)


def _increasing_root(excess: Callable[[float], float]) -> float:
    """exp(x) at the root of an increasing function of the log odds ratio, searched in [-60, 60]."""
    low, high = -60.0, 60.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) > 0 else (middle, high)
    return math.exp((low + high) / 2)


def _conditional(total: int, n1: int, n2: int) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Floats]:
    """Possible counts of sample 1 given the total, and the logarithms of their hypergeometric weights (largest 0)."""
    first = np.arange(max(0, total - n2), min(n1, total) + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, max(n1, n2) + 1.0)))])
    second = total - first
    log_weights = -(
        log_factorial[first] + log_factorial[n1 - first] + log_factorial[second] + log_factorial[n2 - second]
    )
    return first, log_weights - log_weights.max()


def _sentence(noun: str, counts: tuple[int, int, int, int], difference: Interval, p_value: float | None) -> str:
    """The comparison in words: the rates, their difference with its interval, and how surprising chance would be."""
    k1, n1, k2, n2 = counts
    if p_value is None:
        return f"Nothing can be compared: {k1}/{n1} against {k2}/{n2} leaves a sample without runs."
    level = 1 - difference.confidence
    rates = f"{k1}/{n1} ({k1 / n1:.0%}) to {k2}/{n2} ({k2 / n2:.0%})"
    points = sorted((abs(100 * difference.lower), abs(100 * difference.upper)))
    if difference.lower > 0 or difference.upper < 0:
        verb = "fell" if difference.lower > 0 else "rose"
        span = f"by {points[0]:.0f} to {points[1]:.0f} percentage points"
    else:
        verb = "went"
        span = f"a change of {-100 * difference.upper:+.0f} to {-100 * difference.lower:+.0f} percentage points"
    if p_value <= level:
        weight = "chance alone would rarely do that"
    else:
        weight = "chance alone could do that, which does not show that the rates are equal"
    return (
        f"The {noun} {verb} from {rates}, {span} ({difference.confidence:.0%} interval, {difference.method}); "
        f"{weight} (p = {p_value:.2g})."
    )
