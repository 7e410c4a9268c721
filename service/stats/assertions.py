"""An assertion on a metric that catches shifts without failing on a lone outlier: in two parts, with its error rates.

  upper-trimmed mean < most_mean   and   number of values above cut <= most_outliers

The first part sees the core, the second the outliers. A plain `mean < t` loose enough to survive outliers of 1 % among
32 values catches a core that grew x12; the two-part assertion with as few false failures catches x1.9 (facts 5).

Assumes that the values at hand are what a healthy program produces, independent, and that core and outliers can be
resampled from them: operating characteristics hold for this sample, and their noise is that of its size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from service.stats.rates import FloatArray
from service.stats.thresholds import TRIM, check_core, outlier_cut, summarise, trimmed_mean

Fails = Callable[[FloatArray], NDArray[np.bool_]]

SHIFTS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0, 50.0)
OUTLIER_RATES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
CAUGHT = 0.9
_ROWS = 40_000
_TRIALS = 4000


@dataclass(frozen=True, slots=True)
class TwoPartAssertion:
    """Pass when the mean without the largest `trim` is below `most_mean` and at most `most_outliers` exceed `cut`."""

    n: int
    most_mean: float
    cut: float
    most_outliers: int
    trim: float = TRIM

    def fails(self, samples: FloatArray) -> NDArray[np.bool_]:
        """Whether each row of samples [R, n] fails."""
        too_many = (samples > self.cut).sum(-1) > self.most_outliers
        failed: NDArray[np.bool_] = (trimmed_mean(samples, self.trim) >= self.most_mean) | too_many
        return failed


@dataclass(frozen=True, slots=True)
class MeanAssertion:
    """Pass when the mean is below `threshold`."""

    threshold: float

    def fails(self, samples: FloatArray) -> NDArray[np.bool_]:
        """Whether each row of samples [R, n] fails."""
        failed: NDArray[np.bool_] = samples.mean(-1) >= self.threshold
        return failed


@dataclass(frozen=True, slots=True)
class OperatingCurve:
    """How often an assertion fails: on healthy samples, with the core times each of `shifts`, at each outlier rate.

    `at_rates` is empty when no outlier was seen that could be resampled.
    """

    false_fail: float
    shifts: tuple[float, ...]
    at_shifts: tuple[float, ...]
    rates: tuple[float, ...]
    at_rates: tuple[float, ...]

    @property
    def smallest_shift_caught(self) -> float | None:
        """The smallest factor from which on the assertion fails with 0.9; None when the largest is not caught."""
        return _first_caught(self.shifts, self.at_shifts)

    @property
    def smallest_rate_caught(self) -> float | None:
        """The smallest outlier rate from which on the assertion fails with 0.9; None when the largest is not caught."""
        return _first_caught(self.rates, self.at_rates)


def _first_caught(values: Sequence[float], fails: Sequence[float]) -> float | None:
    caught = None
    for value, probability in zip(reversed(values), reversed(fails), strict=True):
        if probability < CAUGHT:
            break
        caught = value
    return caught


def recommend_assertion(
    x: ArrayLike, n: int, rng: np.random.Generator, cut: float | None = None, false_fail: float = 1e-3
) -> TwoPartAssertion:
    """A two-part assertion over n values of which each part fails healthy samples with about `false_fail`.

    most_mean is the (1 - false_fail) quantile of the trimmed mean of n resampled values; most_outliers is the same
    quantile of Bin(n, eps), eps = (k + 1/2) / (N + 1) after k outliers among N values, so that never having seen one is
    not taken for a proof that there are none.
    """
    if n < 2:
        raise ValueError(f"an assertion needs at least 2 values, got {n}")
    if not 0 < false_fail < 0.5:
        raise ValueError(f"false_fail must lie in (0, 0.5), got {false_fail}")
    from scipy.stats import binom

    values = np.asarray(x, float)
    summary = summarise(values, cut)
    # The next number above the quantile: repeated values lie on it, and `mean < quantile` would fail all of them.
    quantile = np.quantile(trimmed_mean(rng.choice(values, (_ROWS, n))), 1 - false_fail)
    most_mean = float(np.nextafter(quantile, np.inf))
    rate = (summary.n_outliers + 0.5) / (summary.n + 1)
    return TwoPartAssertion(n, most_mean, summary.cut, int(binom.ppf(1 - false_fail, n, rate)))


def operating_curve(
    x: ArrayLike,
    n: int,
    fails: Fails,
    rng: np.random.Generator,
    cut: float | None = None,
    shifts: Sequence[float] = SHIFTS,
    rates: Sequence[float] = OUTLIER_RATES,
) -> OperatingCurve:
    """How often `fails` is true over n values resampled from x: core times each shift, outliers at each rate.

    Outliers keep their size and, along the shifts, their observed rate. 40,000 resamples for the healthy case, 4,000
    for each other point: standard errors of at most 0.008.
    """
    values = np.asarray(x, float)
    limit = outlier_cut(values) if cut is None else cut
    core, outliers = values[values <= limit], values[values > limit]
    check_core(core, limit)
    observed = len(outliers) / len(values)

    def failing(rows: int, shift: float, rate: float) -> float:
        samples = shift * rng.choice(core, (rows, n))
        if outliers.size:
            out = rng.random((rows, n)) < rate
            samples[out] = rng.choice(outliers, int(out.sum()))
        return float(fails(samples).mean())

    return OperatingCurve(
        failing(_ROWS, 1.0, observed),
        tuple(shifts),
        tuple(failing(_TRIALS, shift, observed) for shift in shifts),
        tuple(rates) if outliers.size else (),
        tuple(failing(_TRIALS, 1.0, rate) for rate in rates) if outliers.size else (),
    )
