"""Exact coverage of the intervals over a grid of rates: the reference is section 1.4 of the facts."""

import itertools

import numpy as np
import pytest

from service.stats.chan_zhang import binomial_pmf, chan_zhang
from service.stats.intervals import clopper_pearson, newcombe, wilson
from service.stats.score import score_limits

RATES = np.unique(
    np.concatenate([[0, 0.001, 0.01, 0.02, 0.05], np.linspace(0.1, 0.9, 17), [0.95, 0.98, 0.99, 0.999, 1]])
)
IS_INSIDE = (RATES >= 0.02) & (RATES <= 0.98)
IS_MIDDLE = (RATES >= 0.1) & (RATES <= 0.9)


def coverage(lower, upper, n):
    """Probability that the limits [n + 1, n + 1] hold the true difference, at every pair of rates."""
    pmf = binomial_pmf(n, RATES)
    result = np.empty((len(RATES), len(RATES)))
    for (i, p), (j, q) in itertools.product(enumerate(RATES), repeat=2):
        holds = (lower - 1e-9 <= p - q) & (p - q <= upper + 1e-9)
        result[i, j] = pmf[i] @ holds @ pmf[j]
    return result, pmf @ (upper - lower) @ pmf.T


# n: smallest, mean, share of cells below .93, smallest with both rates in [.02, .98], mean width over [.1, .9].
@pytest.mark.parametrize(
    ("n", "smallest", "mean", "share", "inside", "width"),
    [
        (5, 0.860, 0.974, 0.05, 0.914, 0.97),
        (10, 0.895, 0.966, 0.04, 0.9245, 0.72),
        (20, 0.921, 0.958, 0.01, 0.932, 0.52),
        (40, 0.923, 0.954, 0.02, 0.935, 0.37),
    ],
)
def test_miettinen_nurminen_covers_as_documented(n, smallest, mean, share, inside, width):
    k = np.arange(n + 1.0)
    cells, widths = coverage(*score_limits(k[:, None], n, k[None, :], n, 1.9599639845), n)
    assert cells.min() == pytest.approx(smallest, abs=6e-4)
    assert cells.mean() == pytest.approx(mean, abs=6e-4)
    assert (cells < 0.93).mean() == pytest.approx(share, abs=6e-3)
    assert cells[np.ix_(IS_INSIDE, IS_INSIDE)].min() == pytest.approx(inside, abs=6e-4)
    assert widths[np.ix_(IS_MIDDLE, IS_MIDDLE)].mean() == pytest.approx(width, abs=6e-3)


def test_newcombe_covers_as_documented():
    limits = np.array([[newcombe(a, 20, b, 20) for b in range(21)] for a in range(21)])
    cells, widths = coverage(limits[..., 0], limits[..., 1], 20)
    assert (cells.min(), cells.mean()) == pytest.approx((0.880, 0.962), abs=6e-4)
    assert widths[np.ix_(IS_MIDDLE, IS_MIDDLE)].mean() == pytest.approx(0.50, abs=6e-3)


# exact2x2 (24/61 - 10/35); Fagerland, Lydersen, Laake 2015, Statistical Methods in Medical Research 24:224-254
# (7/34 - 1/34, two places); the facts, on a grid of 0.0005 (18/20 - 7/20).
@pytest.mark.parametrize(
    ("table", "limits", "within"),
    [
        ((24, 61, 10, 35), (-0.0992, 0.2949), 0.0021),
        ((18, 20, 7, 20), (0.2565, 0.7730), 0.0016),
        ((7, 34, 1, 34), (0.019, 0.36), 0.0061),
    ],
)
def test_chan_zhang_reproduces_the_published_limits_of_larger_tables(table, limits, within):
    assert chan_zhang(*table) == pytest.approx(limits, abs=within)


@pytest.mark.parametrize(("n", "mean_width"), [(5, 1.08), (10, 0.78)])
def test_chan_zhang_covers_at_least_its_confidence_everywhere(n, mean_width):
    lower, upper = np.empty((n + 1, n + 1)), np.empty((n + 1, n + 1))
    for a, b in itertools.combinations_with_replacement(range(n + 1), 2):
        lower[a, b], upper[a, b] = chan_zhang(a, n, b, n)
        lower[b, a], upper[b, a] = -upper[a, b], -lower[a, b]
    cells, widths = coverage(lower, upper, n)
    assert cells.min() >= 0.95
    assert widths[np.ix_(IS_MIDDLE, IS_MIDDLE)].mean() == pytest.approx(mean_width, abs=8e-3)


@pytest.mark.parametrize("n", [1, 5, 20, 60])
def test_clopper_pearson_covers_at_least_its_confidence_and_wilson_on_average(n):
    rates = np.linspace(0.0, 1.0, 1001)
    pmf = binomial_pmf(n, rates)
    for method, smallest, mean in ((clopper_pearson, 0.95, 0.95), (wilson, 0.79, 0.944)):
        limits = np.array([method(k, n) for k in range(n + 1)])
        holds = (limits[:, 0] <= rates[:, None] + 1e-12) & (rates[:, None] <= limits[:, 1] + 1e-12)
        covered = (pmf * holds).sum(1)
        assert covered.min() >= smallest - 1e-9
        assert covered.mean() >= mean
