"""Score statistics of two binomial rates: the restricted likelihood that intervals, exact tests and e-values share."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

BISECTIONS = 60


def constrained_rates(
    x1: npt.ArrayLike, n1: float, x2: npt.ArrayLike, n2: float, difference: npt.ArrayLike
) -> tuple[Floats, Floats]:
    """Rates (p1, p2) of largest likelihood under p1 - p2 = difference, elementwise.

    The counts may be real numbers: with n1 = n2 = 1 and x the alternative's rates this is the reverse information
    projection of that alternative on the null, which the e-values need.

    Source: Miettinen and Nurminen 1985, Statistics in Medicine 4:213-226, appendix 1 (trigonometric root of the
    cubic in p2).
    """
    x1, x2, d = (np.asarray(value, dtype=np.float64) for value in (x1, x2, difference))
    l3 = n1 + n2
    l2 = (n1 + 2 * n2) * d - l3 - (x1 + x2)
    l1 = (n2 * d - l3 - 2 * x2) * d + x1 + x2
    l0 = x2 * d * (1 - d)
    third = l2 / (3 * l3)
    # Products instead of powers: an exact interval evaluates this millions of times, and pow dominates it.
    q = third * third * third - l1 * l2 / (6 * l3 * l3) + l0 / (2 * l3)
    s = np.where(q >= 0, 1.0, -1.0) * np.sqrt(np.maximum(third * third - l1 / (3 * l3), 0.0))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        cosine = np.clip(np.where(s != 0, q / (s * s * s), 0.0), -1.0, 1.0)
    p2 = 2 * s * np.cos((np.pi + np.arccos(cosine)) / 3) - third
    p2 = np.clip(p2, np.maximum(0.0, -d), np.minimum(1.0, 1.0 - d))
    return np.clip(p2 + d, 0.0, 1.0), p2


def score_z(x1: npt.ArrayLike, n1: int, x2: npt.ArrayLike, n2: int, difference: npt.ArrayLike) -> Floats:
    """Score statistic of H0 p1 - p2 = difference, elementwise; positive when the data show a larger difference.

    Variance under the restricted estimate times N / (N - 1), N = n1 + n2 (Miettinen and Nurminen 1985, eq. 9).
    A variance of zero gives 0 when the data equal the hypothesis and plus or minus a million otherwise, so that
    such tables order as the most extreme. Needs n1, n2 >= 1.
    """
    x1, x2, d = (np.asarray(value, dtype=np.float64) for value in (x1, x2, difference))
    p1, p2 = constrained_rates(x1, n1, x2, n2, d)
    variance = (p1 * (1 - p1) / n1 + p2 * (1 - p2) / n2) * ((n1 + n2) / (n1 + n2 - 1))
    excess = x1 / n1 - x2 / n2 - d
    with np.errstate(divide="ignore", invalid="ignore"):
        z = excess / np.sqrt(variance)
    z = np.where(variance <= 1e-15, np.sign(excess) * 1e6, z)
    return np.where(np.abs(excess) < 1e-12, 0.0, z)


def score_limits(x1: npt.ArrayLike, n1: int, x2: npt.ArrayLike, n2: int, critical: float) -> tuple[Floats, Floats]:
    """Limits of {d : |score_z(d)| <= critical}, elementwise, by bisection from the estimate outwards.

    Source: Miettinen and Nurminen 1985, Statistics in Medicine 4:213-226. Assumes independent runs, one rate per arm.
    Guarantee: approximate coverage, fixed n.
    """
    x1, x2 = np.broadcast_arrays(np.asarray(x1, dtype=np.float64), np.asarray(x2, dtype=np.float64))
    estimate = np.asarray(x1 / n1 - x2 / n2)

    def bisect(low: Floats, high: Floats, target: float) -> Floats:
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            is_left = score_z(x1, n1, x2, n2, middle) > target
            low, high = np.where(is_left, middle, low), np.where(is_left, high, middle)
        return (low + high) / 2

    ones = np.ones_like(estimate)
    return bisect(-ones, estimate, critical), bisect(estimate, ones, -critical)


def ratio_chi_square(k1: int, n1: int, k2: int, n2: int, ratio: float) -> float:
    """Koopman's statistic of H0 p1 = ratio * p2; zero at the observed ratio, growing away from it.

    Source: Koopman 1984, Biometrics 40:513-517: the Pearson statistic under the restricted estimate. Written as the
    sum over the arms of (k - n p)^2 / (n p (1 - p)), which has no singular middle. Needs ratio > 0.
    """
    n = n1 + n2
    b = ratio * (n1 + k2) + k1 + n2
    # The smaller root as product over sum: the difference would cancel at large ratios.
    p1 = 2 * ratio * (k1 + k2) / (b + np.sqrt(max(b * b - 4 * ratio * n * (k1 + k2), 0.0)))
    statistic = 0.0
    for k, size, p in ((k1, n1, min(p1, 1.0)), (k2, n2, min(p1 / ratio, 1.0))):
        distance, variance = k - size * p, size * p * (1 - p)
        if abs(distance) > 1e-12:
            statistic += np.inf if variance <= 0.0 else distance * distance / variance
    return float(statistic)
