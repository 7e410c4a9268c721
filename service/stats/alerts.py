"""Which of many tests changed, with a bound on false alarms: conditional e-values, e-BH, and the guard against outages.

For a history with k failures in N runs, e = mean_t BF(t) * P0(k) / P1(k), where BF are the Bayes factors of
`changepoint.scan`, P0 is the beta-binomial probability of k and P1 its mean under the changes that BF averages over.
Given k, every order of the outcomes is equally likely when nothing changed, whatever the rate: E[e | k] = 1 exactly.
The e-values of all tests then go through e-BH (Wang and Ramdas 2022, JRSS B 84:822-852), which bounds the expected
share of false alerts at alpha for tests that depend on each other in any way.

Assumes exchangeable runs of one test under "nothing changed". An outage of a host breaks that for many tests at once:
leave such runs out with `usable_runs`, collapse to commits, and confirm the short list with `permutation_p_value`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from service.stats.changepoint import PRIOR, Histories, central_interval, histories, log_marginal, scan
from service.stats.evalues import e_bh
from service.stats.rates import FloatArray, normalise

_CELLS_AT_ONCE = 2_000_000


@dataclass(frozen=True, slots=True)
class Alert:
    """Test number `test` changed: log e-value, likeliest first unit of the new rate, and its 99 % interval."""

    test: int
    log_e: float
    unit: int
    earliest: int
    latest: int


def alerts(h: Histories, alpha: float = 0.05) -> tuple[Alert, ...]:
    """The tests that e-BH reports at false discovery rate alpha, the strongest first."""
    log_e = conditional_log_e(h)
    found = []
    for test in np.flatnonzero(e_bh(log_e, alpha)).tolist():
        weight = normalise(scan(Histories(h.fails[test : test + 1], h.runs[test : test + 1]))[0])
        first, last = central_interval(weight)
        found.append(Alert(test, float(log_e[test]), int(weight.argmax()) + 1, first + 1, last + 1))
    return tuple(sorted(found, key=lambda alert: -alert.log_e))


def conditional_log_e(h: Histories) -> FloatArray:
    """The log e-value of every test [T]; 0 where the outcomes never differ, for then there is one order only."""
    log_e = np.zeros(h.n_tests)
    fails, runs = h.fails[:, -1], h.runs[:, -1]
    several = (np.diff(h.runs, axis=1) > 0).sum(1) > 1
    mixed = np.flatnonzero((fails > 0) & (fails < runs) & several)
    rows_of: dict[bytes, list[int]] = {}
    step = max(1, _CELLS_AT_ONCE // h.n_units)
    for first in range(0, mixed.size, step):
        group = mixed[first : first + step]
        part = Histories(h.fails[group], h.runs[group])
        # A unit without runs makes no new cut.
        is_cut = (np.diff(part.runs, axis=1)[:, :-1] > 0) & (part.runs[:, 1:-1] < part.runs[:, -1:])
        factor = np.where(is_cut, scan(part), -np.inf)
        top = factor.max(1)
        log_e[group] = top + np.log(np.exp(factor - top[:, None]).sum(1) / is_cut.sum(1))
        for test, cumulative in zip(group.tolist(), part.runs, strict=True):
            rows_of.setdefault(np.unique(cumulative).tobytes(), []).append(test)
    for cuts, rows in rows_of.items():
        log_e[rows] += _log_correction(cuts)[fails[rows]]
    return log_e


def log_correction(cuts: Sequence[int]) -> FloatArray:
    """The log of P0(k) / P1(k) for k = 0..N, where `cuts` are the runs left of each possible change and N, in order.

    With one run per unit, cuts = 1, 2, .. N.
    """
    return _log_correction(np.array([0, *cuts], np.int32).tobytes())


@lru_cache(maxsize=1024)
def _log_correction(cumulative: bytes) -> FloatArray:
    runs = np.frombuffer(cumulative, np.int32)
    total = int(runs[-1])
    # One run's probabilities are of the order of a power of n: products of two of them do not underflow.
    of_length = {int(m): _beta_binomial(int(m)) for m in {*runs[1:-1].tolist(), *(total - runs[1:-1]).tolist()}}
    changed = np.zeros(total + 1)
    for m in runs[1:-1].tolist():
        changed += np.convolve(of_length[m], of_length[total - m])
    correction: FloatArray = np.log(_beta_binomial(total)) - np.log(changed / (runs.size - 2))
    return correction


def _beta_binomial(n: int) -> FloatArray:
    from scipy.special import gammaln

    k = np.arange(n + 1)
    choose = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)
    probability: FloatArray = np.exp(choose + log_marginal(k, np.full(n + 1, n), PRIOR))
    return probability


def usable_runs(failed: NDArray[np.bool_], ran: NDArray[np.bool_], most_failing: float = 0.8) -> NDArray[np.bool_]:
    """Which runs [R] are not outages, from tests x runs [T, R]: at most the share `most_failing` of what ran failed.

    A run of a single test is never an outage, nor is one without tests. 0.8 is the guard of Trunk's flaky-test uploads
    (facts 6).
    """
    if failed.shape != ran.shape or failed.ndim != 2:
        raise ValueError(f"failed {failed.shape} and ran {ran.shape} must have the same shape [tests, runs]")
    n_ran, n_failed = ran.sum(0), (failed & ran).sum(0)
    usable: NDArray[np.bool_] = (n_ran < 2) | (n_failed <= most_failing * n_ran)
    return usable


def collapse_to_commits(
    failed: NDArray[np.bool_], ran: NDArray[np.bool_], commit: NDArray[np.integer]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Failures and runs [T, C] per commit, from tests x runs [T, R] and the commit 0..C-1 of each run in order.

    Runs of one commit share its luck (one build, one host, one hour): a commit, not a run, is then the unit that is
    permuted.
    """
    position = np.asarray(commit)
    if position.shape != failed.shape[1:] or (np.diff(position) < 0).any():
        raise ValueError("commit needs one entry per run, in commit order")
    first = np.flatnonzero(np.diff(position, prepend=-1))
    return (
        np.add.reduceat((failed & ran).astype(np.int64), first, axis=1),
        np.add.reduceat(ran.astype(np.int64), first, axis=1),
    )


def permutation_p_value(
    fails: Sequence[int], runs: Sequence[int], rng: np.random.Generator, permutations: int = 1000
) -> float:
    """The share of orders of the units, the given one included, whose best change is at least as strong as the given.

    Exact level for exchangeable units (commits) even when runs within a unit depend on each other.
    """
    f, n = np.asarray(fails), np.asarray(runs)
    if f.size < 2:
        return 1.0
    observed = float(scan(histories(f[None], n[None])).max())
    order = rng.permuted(np.broadcast_to(np.arange(f.size), (permutations, f.size)), axis=1)
    strongest = scan(histories(f[order], n[order])).max(1)
    return float((1 + (strongest >= observed - 1e-9).sum()) / (1 + permutations))
