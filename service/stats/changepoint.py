"""Where the failure rate of a test changed: a beta-binomial scan of many histories at once.

A history is a row of units in commit order (a run, or a commit with several runs), each with failures and runs. The log
marginal likelihood of f failures in n runs is, under the prior Beta(a, b),
  ml(f, n) = lnG(a+f) - lnG(a) + lnG(b+n-f) - lnG(b) - lnG(a+b+n) + lnG(a+b),
and the log Bayes factor of a change after unit t is ml(left) + ml(right) - ml(all). A segment is split at its largest
factor while that exceeds -ln(1e-4), recursively. Prior Beta(0.3, 0.5), threshold and recursion are those of LUCI
Analysis (luci-go, analysis/internal/changepoints, Apache-2.0), whose unit-test values the tests reproduce.

Assumes independent runs at one rate per segment. The threshold draws a timeline, it is no error rate: alerts come from
`alerts`. Measured: in 5,000 null histories of 1,000 runs at most 1 exceeds it at any rate up to 0.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from service.stats.rates import FloatArray, normalise

IntArray = NDArray[np.int32]

PRIOR = (0.3, 0.5)
THRESHOLD = -math.log(1e-4)
_CELLS_AT_ONCE = 400_000


@dataclass(frozen=True, slots=True, eq=False)
class Histories:
    """Cumulative failures and runs of T tests over U units, each [T, U + 1] with a zero column in front."""

    fails: IntArray
    runs: IntArray

    @property
    def n_tests(self) -> int:
        """Number of rows."""
        return int(self.fails.shape[0])

    @property
    def n_units(self) -> int:
        """Number of units of each row."""
        return int(self.fails.shape[1]) - 1


def histories(fails: ArrayLike, runs: ArrayLike | None = None) -> Histories:
    """The histories of failures [T, U] and runs (None: one run per unit; [U] for all tests; or [T, U]).

    Returns cumulative sums with a zero column in front. ValueError for another shape or failures above runs.
    """
    f = np.asarray(fails)
    if f.ndim != 2 or f.shape[1] == 0:
        raise ValueError(f"failures have shape {f.shape}, expected [tests, units] with at least one unit")
    n = np.ones(f.shape[1], np.int32) if runs is None else np.asarray(runs)
    if n.shape not in {f.shape, f.shape[1:]}:
        raise ValueError(f"runs have shape {n.shape}, expected {f.shape} or {f.shape[1:]}")
    if (f < 0).any() or (f > n).any():
        raise ValueError("every unit needs 0 <= failures <= runs")
    total_fails, total_runs = (np.zeros((len(x), f.shape[1] + 1), np.int32) for x in (f, np.atleast_2d(n)))
    np.cumsum(f, 1, dtype=np.int32, out=total_fails[:, 1:])
    np.cumsum(np.atleast_2d(n), 1, dtype=np.int32, out=total_runs[:, 1:])
    return Histories(total_fails, np.broadcast_to(total_runs, total_fails.shape))


@lru_cache(maxsize=8)
def _log_gamma_tables(most: int, a: float, b: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    from scipy.special import gammaln

    k = np.arange(most + 1.0)
    return gammaln(k + a) - gammaln(a), gammaln(k + b) - gammaln(b), gammaln(k + a + b) - gammaln(a + b)


def log_marginal(fails: ArrayLike, runs: ArrayLike, prior: tuple[float, float] = PRIOR) -> FloatArray:
    """ml(f, n) of one sequence, elementwise: the probability of that order of outcomes under Beta(*prior).

    Source: LUCI Analysis, formula and assumption as in the module. Guarantee: none, a likelihood under the prior.
    """
    f, n = np.asarray(fails, np.intp), np.asarray(runs, np.intp)
    failed, passed, all_runs = _log_gamma_tables(max(16, 1 << int(n.max(initial=1)).bit_length()), *prior)
    value: FloatArray = np.asarray(failed[f] + passed[n - f] - all_runs[n])
    return value


def scan(h: Histories, prior: tuple[float, float] = PRIOR) -> FloatArray:
    """The log Bayes factor [T, U - 1] of a change after unit 0, 1, .. U - 2 of each whole history.

    ml(left) + ml(right) - ml(all). Source: LUCI Analysis, as in the module. Assumes independent runs at one rate on
    each side. Guarantee: none, a factor is no error rate.
    """
    all_fails, all_runs = h.fails[:, -1:], h.runs[:, -1:]
    left_fails, left_runs = h.fails[:, 1:-1], h.runs[:, 1:-1]
    left, right = (
        log_marginal(left_fails, left_runs, prior),
        log_marginal(all_fails - left_fails, all_runs - left_runs, prior),
    )
    factor: FloatArray = left + right - log_marginal(all_fails, all_runs, prior)
    return factor


@dataclass(frozen=True, slots=True, eq=False)
class FirstSplit:
    """Per test: the largest log Bayes factor (-inf without mixed outcomes) and the units `at` left of that change."""

    log_factor: FloatArray
    at: IntArray


def first_split(h: Histories) -> FirstSplit:
    """The best single change of every test. Tests that always passed or always failed are not scanned: none has one.

    The largest value of `scan` and its position. Source and assumption as in the module. Guarantee: none, an estimate.
    """
    return _best_splits(h, np.arange(h.n_tests), np.zeros(h.n_tests, np.intp), np.full(h.n_tests, h.n_units))


def _best_splits(h: Histories, test: NDArray[np.intp], start: NDArray[np.intp], end: NDArray[np.intp]) -> FirstSplit:
    """The best change of each segment [start, end) of row `test`; only units where the outcome turns can hold it.

    Within a stretch of all-passed (or all-failed) units the factor has no inner maximum, so that a change sits at the
    border of such a stretch; LUCI evaluates the same positions.
    """
    log_factor, at = np.full(test.size, -np.inf), np.zeros(test.size, np.int32)
    fails = h.fails[test, end] - h.fails[test, start]
    runs = h.runs[test, end] - h.runs[test, start]
    mixed = np.flatnonzero((fails > 0) & (fails < runs) & (end - start > 1))
    step = max(1, _CELLS_AT_ONCE // max(1, h.n_units))
    for first in range(0, mixed.size, step):
        group = mixed[first : first + step]
        f, n = h.fails[test[group]], h.runs[test[group]]
        df, dn = np.diff(f, axis=1), np.diff(n, axis=1)
        # Units of equal kind (all passed, all failed) and the positions between units of different kind.
        kind = np.where(df == 0, 0, np.where(df == dn, 1, 2))
        turns = (kind[:, 1:] != kind[:, :-1]) | (kind[:, 1:] == 2)
        position = np.arange(1, h.n_units)
        turns &= (position > start[group, None]) & (position < end[group, None])
        row, column = np.nonzero(turns)
        column = column + 1
        member = group[row]
        f0, n0 = h.fails[test[member], start[member]], h.runs[test[member], start[member]]
        left_f, left_n = f[row, column] - f0, n[row, column] - n0
        factor = (
            log_marginal(left_f, left_n)
            + log_marginal(fails[member] - left_f, runs[member] - left_n)
            - log_marginal(fails[member], runs[member])
        )
        # The last assignment to a segment stays: its largest factor, the earliest position among equals.
        order = np.argsort(-factor, kind="stable")[::-1]
        log_factor[member[order]] = factor[order]
        at[member[order]] = column[order]
    return FirstSplit(log_factor, at)


def segment_all(h: Histories, threshold: float = THRESHOLD) -> tuple[tuple[int, ...], ...]:
    """The change positions of every test: the first unit of each new segment, in order; () for a stable test.

    Recursive binary segmentation, level by level over all tests at once.

    A segment is split at its largest log Bayes factor while that exceeds `threshold`. Source: LUCI Analysis, as in the
    module. Guarantee: none proven; what was measured stands in the module.
    """
    found: list[list[int]] = [[] for _ in range(h.n_tests)]
    test = np.arange(h.n_tests)
    start, end = np.zeros(h.n_tests, np.intp), np.full(h.n_tests, h.n_units)
    while test.size:
        best = _best_splits(h, test, start, end)
        split = best.log_factor > threshold
        test, start, end, at = test[split], start[split], end[split], best.at[split].astype(np.intp)
        for row, position in zip(test.tolist(), at.tolist(), strict=True):
            found[row].append(position)
        test, start, end = np.tile(test, 2), np.concatenate([start, at]), np.concatenate([at, end])
    return tuple(tuple(sorted(positions)) for positions in found)


def current_counts(h: Histories, changes: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    """Failures [T] and runs [T] of every test since its last change, `changes` as from `segment_all`.

    What a flakiness score is computed from: a test that was repaired is not flaky any more.

    Guarantee: none, an estimate: the last change is itself estimated.
    """
    if len(changes) != h.n_tests:
        raise ValueError(f"changes of {len(changes)} tests, but {h.n_tests} histories")
    start = np.array([each[-1] if each else 0 for each in changes], np.intp)
    row = np.arange(h.n_tests)
    return h.fails[:, -1] - h.fails[row, start], h.runs[:, -1] - h.runs[row, start]


@dataclass(frozen=True, slots=True)
class Segment:
    """Units [start, end) at one rate, and where its beginning lies: the change is at a unit in [earliest, latest].

    `earliest` and `latest` bound the first unit of the segment with 99 % (both 0 for the first segment).
    """

    start: int
    end: int
    fails: int
    runs: int
    earliest: int
    latest: int

    @property
    def rate(self) -> float:
        """Failures over runs, 0 without runs."""
        return self.fails / self.runs if self.runs else 0.0


def segments(
    fails: Sequence[int] | NDArray[np.integer], runs: Sequence[int] | None = None, level: float = 0.99
) -> tuple[Segment, ...]:
    """The segments of one history with the interval of each beginning.

    The interval is the central one of P(change after unit t | data) within the two segments around it (facts 4). It is
    conditional on a change being there: weak changes that happen to be detected are covered less often than `level`
    (0.93 for 0.1 -> 0.2).
    """
    h = histories(np.asarray(fails)[None], None if runs is None else np.asarray(runs)[None])
    borders = [0, *segment_all(h)[0], h.n_units]
    out = []
    for k, (start, end) in enumerate(pairwise(borders)):
        earliest = latest = start
        if k:
            low = borders[k - 1]
            weight = position_posterior(np.diff(h.fails[0, low : end + 1]), np.diff(h.runs[0, low : end + 1]))
            first, last = central_interval(weight, level)
            earliest, latest = low + first + 1, low + last + 1
        total = h.fails[0, end] - h.fails[0, start], h.runs[0, end] - h.runs[0, start]
        out.append(Segment(start, end, int(total[0]), int(total[1]), earliest, latest))
    return tuple(out)


def position_posterior(
    fails: ArrayLike, runs: ArrayLike | None = None, prior_weight: ArrayLike | None = None
) -> FloatArray:
    """P(change after unit t | data, one change), t = 0..U-2; `prior_weight` [U - 1] of any scale, flat by default.

    The prior to hand to a commit search: its change t is the one between units t and t + 1.

    exp(log Bayes factor of t) times the prior weight, normalised. Source: LUCI Analysis for the factor, then Bayes'
    theorem. Assumes exactly one change. Guarantee: none beyond the prior, a posterior.
    """
    log_weight = scan(histories(np.asarray(fails)[None], None if runs is None else np.asarray(runs)[None]))[0]
    if prior_weight is not None:
        log_weight = log_weight + np.log(np.asarray(prior_weight, float))
    return normalise(log_weight)


def central_interval(weight: ArrayLike, level: float = 0.99) -> tuple[int, int]:
    """First and last index of the central interval of weights that sum to 1.

    At most (1 - level) / 2 of the weight lies on either side, so at least `level` lies within; a credible interval when
    the weights are a posterior.
    """
    total = np.cumsum(np.asarray(weight, float))
    tail = (1 - level) / 2
    last = min(int(np.searchsorted(total, 1 - tail)), total.size - 1)
    return int(np.searchsorted(total, tail)), last
