"""How flaky each test is: an empirical-Bayes score over all tests, and two signs that tell a flake from a regression.

Failures k of n runs of a test within its current segment (`changepoint`): with probability pi0 the test never fails,
else its rate is Beta(a, b). The three numbers are fitted to all tests together,
  L(k, n) = pi0 [k = 0] + (1 - pi0) BetaBinomial(k; n, a, b),
by maximum likelihood on the distinct (k, n). The score of a test with failures is the lower 10 % quantile of
Beta(a + k, b + n - k): "it fails at least this often", so that one failure in two runs does not top the list.

Assumes that tests are alike before their data and runs independent within a segment; a score is calibrated over tests
(90 % intervals cover 0.90, facts 6), not for one test. Discordance and transitions assume nothing: they are counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from service.stats.rates import FloatArray


@dataclass(frozen=True, slots=True)
class FlakinessPrior:
    """Over all tests: the share `never` that cannot fail, and Beta(a, b) of the failure rate of the others."""

    a: float
    b: float
    never: float


# Where there is nothing to fit: the values that facts 6 recovers, rounded.
DEFAULT_PRIOR = FlakinessPrior(0.35, 4.0, 0.9)


def fit_prior(fails: ArrayLike, runs: ArrayLike) -> FlakinessPrior:
    """The prior fitted to all tests; `DEFAULT_PRIOR` while fewer than three of them have failed.

    Nelder-Mead from an explicit simplex: SciPy's own first step for a coordinate of zero is 0.00025, and stalls.
    """
    from scipy.optimize import minimize
    from scipy.special import betaln, expit

    k, n = _counts(fails, runs)
    if int((k > 0).sum()) < 3:
        return DEFAULT_PRIOR
    pairs, count = np.unique(np.stack([k, n], 1), axis=0, return_counts=True)
    failed, ran = pairs.T.astype(float)

    def negative_log_likelihood(point: FloatArray) -> float:
        # The bounds keep exp finite; no history has a rate shape beyond them.
        a, b = np.exp(np.clip(point[:2], -12, 12))
        never = float(np.clip(expit(point[2]), 1e-9, 1 - 1e-9))
        log_bb = betaln(failed + a, ran - failed + b) - betaln(a, b)
        log_l = np.where(failed == 0, np.log(never + (1 - never) * np.exp(log_bb)), np.log1p(-never) + log_bb)
        return -float((count * log_l).sum())

    start = np.array([np.log(0.3), np.log(10.0), 1.0])
    simplex = np.vstack([start, start + np.eye(3)])
    best = minimize(
        negative_log_likelihood,
        start,
        method="Nelder-Mead",
        options={"maxiter": 2000, "xatol": 1e-4, "fatol": 1e-4, "initial_simplex": simplex},
    ).x
    a, b = np.exp(np.clip(best[:2], -12, 12))
    return FlakinessPrior(float(a), float(b), float(np.clip(expit(best[2]), 1e-9, 1 - 1e-9)))


def rate_quantiles(
    fails: ArrayLike, runs: ArrayLike, prior: FlakinessPrior, quantiles: Sequence[float] = (0.05, 0.5, 0.95)
) -> FloatArray:
    """Posterior quantiles [T, Q] of each failure rate, including the chance that a test without failures never fails.

    The 0.05 and 0.95 quantiles bound a 90 % interval.
    """
    from scipy.stats import beta

    k, n = _counts(fails, runs)
    never = never_fails_probability(k, n, prior)[:, None]
    level = np.asarray(quantiles, float)[None]
    if (level < 0).any() or (level > 1).any():
        raise ValueError(f"quantiles must lie in [0, 1], got {tuple(quantiles)}")
    # The mass `never` sits at rate 0; the rest is spread by the Beta posterior.
    inside = np.clip((level - never) / np.maximum(1 - never, 1e-12), 0.0, 1.0)
    value: FloatArray = np.where(
        level <= never, 0.0, beta.ppf(inside, (prior.a + k)[:, None], (prior.b + n - k)[:, None])
    )
    return value


def never_fails_probability(fails: ArrayLike, runs: ArrayLike, prior: FlakinessPrior) -> FloatArray:
    """The posterior probability [T] that a test belongs to those that never fail; 0 once it has failed."""
    from scipy.special import betaln

    k, n = _counts(fails, runs)
    clean = np.exp(betaln(prior.a, n + prior.b) - betaln(prior.a, prior.b))
    share: FloatArray = np.where(k == 0, prior.never / (prior.never + (1 - prior.never) * clean), 0.0)
    return share


def score(fails: ArrayLike, runs: ArrayLike, prior: FlakinessPrior, quantile: float = 0.1) -> FloatArray:
    """The flakiness score [T]: the posterior quantile of the failure rate of a test that failed, 0 without failures."""
    k, n = _counts(fails, runs)
    return np.where(k > 0, rate_quantiles(k, n, prior, (quantile,))[:, 0], 0.0)


def mean_rate(fails: ArrayLike, runs: ArrayLike, prior: FlakinessPrior) -> FloatArray:
    """The posterior mean [T] of each failure rate."""
    k, n = _counts(fails, runs)
    mean: FloatArray = (1 - never_fails_probability(k, n, prior)) * (k + prior.a) / (n + prior.a + prior.b)
    return mean


@dataclass(frozen=True, slots=True)
class Discordance:
    """How outcomes differ at one commit, and between neighbouring runs.

    `mixed` of `repeated` commits with two runs or more both passed and failed: a flake does, a regression does not.
    `turns` of `pairs` neighbouring runs have different outcomes: many for a flake, few for a regression.
    """

    mixed: int
    repeated: int
    turns: int
    pairs: int

    @property
    def share_mixed(self) -> float | None:
        """Mixed over repeated commits; None when no commit ran twice."""
        return self.mixed / self.repeated if self.repeated else None

    @property
    def transition_rate(self) -> float | None:
        """Turns over pairs; None with fewer than two runs."""
        return self.turns / self.pairs if self.pairs else None


def discordance(failed: Sequence[bool], commit: Sequence[int]) -> Discordance:
    """The discordance of one test from its runs in order: whether each failed, and the commit it ran at."""
    if len(failed) != len(commit):
        raise ValueError(f"{len(failed)} outcomes but {len(commit)} commits")
    outcomes = np.asarray(failed, bool)
    if not outcomes.size:
        return Discordance(0, 0, 0, 0)
    _, index = np.unique(np.asarray(commit), return_inverse=True)
    runs = np.bincount(index)
    fails = np.bincount(index, weights=outcomes)
    repeated = runs >= 2
    mixed = repeated & (fails > 0) & (fails < runs)
    turns = int((outcomes[1:] != outcomes[:-1]).sum())
    return Discordance(int(mixed.sum()), int(repeated.sum()), turns, outcomes.size - 1)


def _counts(fails: ArrayLike, runs: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    k, n = np.broadcast_arrays(np.asarray(fails, np.int64), np.asarray(runs, np.int64))
    if k.ndim != 1:
        raise ValueError(f"counts must be one number per test, got shape {k.shape}")
    if (k < 0).any() or (k > n).any():
        raise ValueError("every test needs 0 <= failures <= runs")
    return k, n
