"""Why a metric crosses its threshold: a shift of the core, or more outliers; and how often it will.

A test that asserts `mean(x) < t` over n samples fails for two different reasons: all samples grew, or a few are far out
and pull the mean. The trimmed mean and a rank test see the first and hardly the second, the count of values above a cut
sees the second only. Larger values are worse here; negate a metric for which smaller is worse.

Assumes independent samples. Levels: each of the three tests is at alpha, so that "nothing changed" is called a change
with at most 3 alpha. Measured at alpha 0.05, n = 100 a side, lognormal core and outliers of 1 % (facts 5): a core x1.5
is called a shift with 0.95, outliers of 8 % with 0.65.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from service.stats.intervals import clopper_pearson
from service.stats.rates import FloatArray

TRIM = 0.1
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
_ROBUST_SIGMAS = 4.5
_PERMUTATIONS = 1999
_DRAWS = 4000


@dataclass(frozen=True, slots=True)
class Summary:
    """One sample: its means, `quantiles` at QUANTILES, and the values above `cut`."""

    n: int
    mean: float
    trimmed_mean: float
    minimum: float
    quantiles: tuple[float, ...]
    maximum: float
    cut: float
    n_outliers: int

    @property
    def outlier_rate(self) -> float:
        """Share of values above the cut."""
        return self.n_outliers / self.n


class Change(StrEnum):
    """What changed between two samples."""

    NONE = "none"
    SHIFT = "shift"
    MORE_OUTLIERS = "more outliers"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class SampleChange:
    """The change from one sample to another with the one-sided p-values behind it; `factor` is of the trimmed means."""

    change: Change
    p_rank: float
    p_trimmed: float
    p_outliers: float
    factor: float
    before: Summary
    after: Summary


@dataclass(frozen=True, slots=True)
class PassRate:
    """The probability that one execution passes `mean of n < threshold`, with an interval."""

    estimate: float
    lower: float
    upper: float
    threshold: float
    n_per_execution: int
    n_outliers: int


def trimmed_mean(x: ArrayLike, share: float = TRIM) -> FloatArray:
    """The mean over the last axis without the largest `share` of values (upper-trimmed)."""
    values = np.sort(np.asarray(x, float), -1)
    kept = max(1, math.ceil((1 - share) * values.shape[-1]))
    mean: FloatArray = np.asarray(values[..., :kept].mean(-1))
    return mean


def outlier_cut(x: ArrayLike) -> float:
    """The value above which a sample is an outlier: 4.5 robust standard deviations above the median.

    On the log scale when every value is positive, else on the linear one; the standard deviation is 1.4826 times the
    median absolute deviation. A normal core passes it with probability 3e-6. When more than half of the values are
    equal, everything above them is an outlier.
    """
    values = _checked(x)
    logarithmic = bool((values > 0).all())
    scale = np.log(values) if logarithmic else values
    middle = np.median(scale)
    cut = float(middle + _ROBUST_SIGMAS * 1.4826 * np.median(np.abs(scale - middle)))
    # The logarithm and back may end below equal values, which are no outliers.
    return max(math.exp(cut), float(np.median(values))) if logarithmic else cut


def summarise(x: ArrayLike, cut: float | None = None) -> Summary:
    """The summary of one sample; `cut` None takes `outlier_cut`. ValueError for an empty or non-finite sample."""
    values = _checked(x)
    limit = outlier_cut(values) if cut is None else cut
    quantiles = tuple(float(q) for q in np.quantile(values, QUANTILES))
    return Summary(
        len(values),
        float(values.mean()),
        float(trimmed_mean(values)),
        float(values.min()),
        quantiles,
        float(values.max()),
        limit,
        int((values > limit).sum()),
    )


def compare_samples(
    before: ArrayLike, after: ArrayLike, rng: np.random.Generator, cut: float | None = None, alpha: float = 0.05
) -> SampleChange:
    """What changed from `before` to `after`, larger being worse; `cut` None takes the cut of `before`.

    SHIFT when the Mann-Whitney test of the values up to the cut rejects, or the permutation test of the trimmed mean
    does and the outliers do not; MORE_OUTLIERS when Fisher's test of the counts above the cut rejects; BOTH when both
    do. Facts 5 ranks all values, so that many outliers look like a shift; here that is done only where a sample has no
    value up to the cut.
    """
    from scipy.stats import fisher_exact, mannwhitneyu

    x, y = _checked(before), _checked(after)
    first = summarise(x, cut)
    second = summarise(y, first.cut)
    core_x, core_y = x[x <= first.cut], y[y <= first.cut]
    ranked = (core_y, core_x) if core_x.size and core_y.size else (y, x)
    p_rank = float(mannwhitneyu(*ranked, alternative="greater").pvalue)
    p_trimmed = _permutation_p(x, y, rng)
    table = [[second.n_outliers, second.n - second.n_outliers], [first.n_outliers, first.n - first.n_outliers]]
    p_outliers = float(fisher_exact(np.array(table), alternative="greater").pvalue)
    more = p_outliers <= alpha
    shifted = p_rank <= alpha or (p_trimmed <= alpha and not more)
    change = (
        Change.BOTH if shifted and more else Change.SHIFT if shifted else Change.MORE_OUTLIERS if more else Change.NONE
    )
    factor = second.trimmed_mean / first.trimmed_mean if first.trimmed_mean else math.inf
    return SampleChange(change, p_rank, p_trimmed, p_outliers, factor, first, second)


def _permutation_p(before: FloatArray, after: FloatArray, rng: np.random.Generator) -> float:
    pooled = np.concatenate([before, after])
    shuffled = rng.permuted(np.broadcast_to(pooled, (_PERMUTATIONS, pooled.size)), axis=1)
    rise = trimmed_mean(shuffled[:, before.size :]) - trimmed_mean(shuffled[:, : before.size])
    observed = trimmed_mean(after) - trimmed_mean(before)
    return float((1 + (rise >= observed - 1e-15).sum()) / (1 + _PERMUTATIONS))


def pass_rate(
    x: ArrayLike,
    threshold: float,
    n_per_execution: int,
    rng: np.random.Generator,
    cut: float | None = None,
    confidence: float = 0.95,
) -> PassRate:
    """The probability that the mean of `n_per_execution` new values lies below `threshold`, from pooled values x.

    pass(eps) = sum_j Bin(j; n, eps) P(mean < t | j outliers), the conditional probabilities by resampling core and
    outliers apart; the interval is the Clopper-Pearson interval of the outlier rate eps pushed through. Without an
    observed outlier one is taken to fail the assertion. A plain bootstrap covers 0.47 instead of 0.95 with 60 values,
    this 0.98 to 0.91 with 60 to 1,000 (facts 5). Where whole executions were recorded, prefer their own interval.
    """
    if n_per_execution < 1:
        raise ValueError(f"n_per_execution must be at least 1, got {n_per_execution}")
    from scipy.stats import binom

    values = _checked(x)
    limit = outlier_cut(values) if cut is None else cut
    core, outliers = values[values <= limit], values[values > limit]
    check_core(core, limit)
    low, high = clopper_pearson(len(outliers), len(values), confidence)
    counts = np.arange(min(n_per_execution, int(binom.ppf(1 - 1e-9, n_per_execution, high))) + 1)
    passes = np.array([_passes(core, outliers, int(j), n_per_execution, threshold, rng) for j in counts])

    def at(rate: float) -> float:
        return float(binom.pmf(counts, n_per_execution, rate) @ passes)

    estimate = at(len(outliers) / len(values))
    # The rate of passing need not fall with the outliers when they are small: the limits are put in order.
    bounds = (at(high), at(low), estimate)
    return PassRate(estimate, min(bounds), max(bounds), threshold, n_per_execution, len(outliers))


def _passes(
    core: FloatArray, outliers: FloatArray, n_outliers: int, n: int, threshold: float, rng: np.random.Generator
) -> float:
    if n_outliers and not outliers.size:
        return 0.0
    total = rng.choice(core, (_DRAWS, n - n_outliers)).sum(1)
    if n_outliers:
        total = total + rng.choice(outliers, (_DRAWS, n_outliers)).sum(1)
    return float((total / n < threshold).mean())


def check_core(core: FloatArray, cut: float) -> None:
    """Raise ValueError unless some value is left at or below the cut."""
    if not core.size:
        raise ValueError(f"no value is at or below the cut {cut}: give a cut that leaves a core")


def _checked(x: ArrayLike | Sequence[float]) -> FloatArray:
    values = np.asarray(x, float)
    if values.ndim != 1 or not values.size:
        raise ValueError(f"a sample is a list of at least one number, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"{int((~np.isfinite(values)).sum())} of {values.size} values are not finite numbers")
    return values
