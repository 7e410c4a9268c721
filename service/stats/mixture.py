"""Mixture likelihood ratios of two failure rates: the e-values that order the boundary and judge an extension."""

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from service.stats.score import Floats, constrained_rates

SMALLEST_RATE = 1e-4


class Prior(StrEnum):
    """Which rates (high, low) the alternative puts its weight on."""

    FIFTY_FIFTY = "50/50"
    CURE = "cure .5"
    SAME = "same"


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """Likelihood ratio of a mixture of alternatives to its projection on a null, per arm and outcome of one run.

    Arrays of one shape [K]; each `*_failed` and `*_clean` is ln(alternative / projection) of one such run.
    """

    log_weight: Floats
    high_failed: Floats
    high_clean: Floats
    low_failed: Floats
    low_clean: Floats

    def log_e(self, n: int, high: npt.ArrayLike, low: npt.ArrayLike) -> Floats:
        """Log e-value after n blocks with `high` and `low` failures (may be real numbers), broadcast together."""
        h, l = np.asarray(high, dtype=np.float64)[..., None], np.asarray(low, dtype=np.float64)[..., None]
        terms = (
            self.log_weight
            + h * self.high_failed
            + (n - h) * self.high_clean
            + l * self.low_failed
            + (n - l) * self.low_clean
        )
        largest = np.max(terms, axis=-1)
        total: Floats = largest + np.log(np.sum(np.exp(terms - largest[..., None]), axis=-1))
        return total

    def log_e_table(self, n: int) -> Floats:
        """Log e-values of every state after n blocks, shape [n + 1, n + 1] indexed by (high, low)."""
        k = np.arange(n + 1.0)[:, None]
        high = k * self.high_failed + (n - k) * self.high_clean
        low = k * self.low_failed + (n - k) * self.low_clean
        # Each factor is scaled by its own largest entry, so that the matrix product cannot overflow.
        top_high, top_low = np.max(high, axis=1, keepdims=True), np.max(low, axis=1, keepdims=True)
        product = (np.exp(high - top_high + self.log_weight)) @ np.exp(low - top_low).T
        with np.errstate(divide="ignore"):
            table: Floats = np.log(product) + top_high + top_low.T
        return table

    def block_expectation(self, p_high: npt.ArrayLike, p_low: npt.ArrayLike) -> Floats:
        """Largest expectation, over the alternatives, of the likelihood ratio of one block at the given rates."""
        ph, pl = np.asarray(p_high, dtype=np.float64)[..., None], np.asarray(p_low, dtype=np.float64)[..., None]
        high = ph * np.exp(self.high_failed) + (1 - ph) * np.exp(self.high_clean)
        low = pl * np.exp(self.low_failed) + (1 - pl) * np.exp(self.low_clean)
        largest: Floats = np.max(high * low, axis=-1)
        return largest


@lru_cache(maxsize=256)
def ratio_mixture(prior: Prior, ratio: float) -> Mixture:
    """Mixture against H0 p_high <= ratio * p_low, 0 < ratio <= 1; ratio 1 is "the rates are equal or reversed".

    Alternatives inside the null are left out. Each (H, L) is projected on the line p_high = ratio * p_low by
    L0 = [s - sqrt(s^2 - 8 ratio (H + L))] / (4 ratio), s = 1 + ratio + ratio L + H, H0 = ratio L0, which minimises the
    Kullback-Leibler divergence.

    Guarantee: the expectation of exp(log_e) is at most 1 at every rate of the null and any stopping time, when runs
    are independent within an arm (Grünwald, de Heide, Koolen 2024, JRSS B 86:1091-1128, theorem 1).
    """
    if not 0.0 < ratio <= 1.0:
        raise ValueError(f"ratio {ratio} must lie in (0, 1]")
    high, low, weight = prior_alternatives(prior)
    s = 1 + ratio + ratio * low + high
    low0 = (s - np.sqrt(np.maximum(s * s - 8 * ratio * (high + low), 0.0))) / (4 * ratio)
    return _mixture(high, low, ratio * low0, low0, weight, high > ratio * low + 1e-9)


def difference_mixture(high: Floats, low: Floats, weight: Floats, difference: float) -> Mixture:
    """Mixture of the alternatives (high, low, weight) against H0 p_high - p_low <= difference.

    ValueError when no alternative lies outside the null. Projection and guarantee as in `ratio_mixture`.

    Each alternative is projected by `score.constrained_rates`. Source: Grünwald, de Heide, Koolen 2024, JRSS B
    86:1091-1128; Miettinen and Nurminen 1985 for the projection.
    """
    high0, low0 = constrained_rates(high, 1.0, low, 1.0, np.full_like(high, difference))
    return _mixture(high, low, high0, low0, weight, high - low > difference + 1e-9)


def prior_alternatives(prior: Prior) -> tuple[Floats, Floats, Floats]:
    """Alternatives (high, low, weight) of a prior, weights summing to 1.

    CURE: half the weight on a full cure at each of 14 base rates, the rest on 15, 35 and 60 % of the base rate left.
    FIFTY_FIFTY: half on CURE, half on Beta(.7, .7) x Beta(.5, 1). SAME: equal rates (.7) or 85 % of the base (.3), for
    the exoneration test; there `high` is the arm that should fail at least as often.

    Source: none, a choice of this program. Any prior keeps the guarantee of `ratio_mixture`; it decides the power.
    """
    match prior:
        case Prior.CURE:
            base = np.array([0.03, 0.06, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97])
            left, share = np.array([0.0, 0.15, 0.35, 0.6]), np.array([0.5, 0.5 / 3, 0.5 / 3, 0.5 / 3])
            high, low = np.repeat(base, 4), np.maximum(0.002, np.outer(base, left).ravel())
            return high, low, np.tile(share, len(base)) / len(base)
        case Prior.FIFTY_FIFTY:
            cure, spread = prior_alternatives(Prior.CURE), beta_alternatives(0.7, 0.7, 0.5, 1.0, 14)
            return (
                np.concatenate([cure[0], spread[0]]),
                np.concatenate([cure[1], spread[1]]),
                np.concatenate([cure[2], spread[2]]) / 2,
            )
        case Prior.SAME:
            base = np.array([0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97])
            low = np.repeat(base, 2)
            return low * np.tile([1.0, 0.85], len(base)), low, np.tile([0.7, 0.3], len(base)) / len(base)


def beta_alternatives(
    high_a: float, high_b: float, low_a: float, low_b: float, points: int
) -> tuple[Floats, Floats, Floats]:
    """Alternatives (high, low, weight): the product of two Beta priors on `points` midpoint quantiles each.

    Midpoint quadrature with equal weights, rates clipped to [1e-4, 1 - 1e-4]. Any prior keeps the guarantee of the
    mixture built on it.
    """
    from scipy.special import betaincinv

    quantile = (np.arange(points) + 0.5) / points
    high, low = (
        np.clip(betaincinv(a, b, quantile), SMALLEST_RATE, 1 - SMALLEST_RATE)
        for a, b in ((high_a, high_b), (low_a, low_b))
    )
    size = points * points
    return np.repeat(high, points), np.tile(low, points), np.full(size, 1 / size)


def _mixture(
    high: Floats, low: Floats, high0: Floats, low0: Floats, weight: Floats, is_outside: npt.NDArray[np.bool_]
) -> Mixture:
    if not np.any(is_outside):
        raise ValueError("every alternative lies inside the null hypothesis")
    high, low, high0, low0, weight = (values[is_outside] for values in (high, low, high0, low0, weight))

    def log_ratio(alternative: Floats, null: Floats) -> Floats:
        return np.log(np.maximum(alternative, 1e-300)) - np.log(np.maximum(null, 1e-300))

    return Mixture(
        np.log(weight / np.sum(weight)),
        log_ratio(high, high0),
        log_ratio(1 - high, 1 - high0),
        log_ratio(low, low0),
        log_ratio(1 - low, 1 - low0),
    )
