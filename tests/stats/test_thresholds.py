"""Metric thresholds on the synthetic model of the facts: core lognormal (median .002, sigma .7), outliers U(.12, .27)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.stats.thresholds import (
    QUANTILES,
    Change,
    compare_samples,
    outlier_cut,
    pass_rate,
    summarise,
    trimmed_mean,
)


def draw(rng, rows, n, median=0.002, eps=0.01):
    x = median * np.exp(0.7 * rng.standard_normal((rows, n)))
    out = rng.random((rows, n)) < eps
    x[out] = rng.uniform(0.12, 0.27, out.sum())
    return x


def test_a_summary_by_hand():
    got = summarise([1.0, 2.0, 3.0, 4.0, 90.0], cut=10)
    assert (got.n, got.mean, got.trimmed_mean, got.minimum, got.maximum) == (5, 20.0, 20.0, 1.0, 90.0)
    assert (got.n_outliers, got.outlier_rate) == (1, 0.2)
    assert got.quantiles[QUANTILES.index(0.5)] == 3.0
    assert trimmed_mean([1.0, 2.0, 3.0, 4.0, 90.0], 0.2) == 2.5


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=50), st.floats(0.0, 0.9))
def test_trimming_never_raises_the_mean(values, share):
    assert trimmed_mean(values, share) <= np.mean(values) * (1 + 1e-9)


def test_the_cut_parts_the_outliers_from_the_core():
    x = draw(np.random.default_rng(1), 1, 5000)[0]
    assert 0.03 < outlier_cut(x) < 0.12
    assert outlier_cut([-1.0, 0.0, 1.0]) == pytest.approx(4.5 * 1.4826)
    assert outlier_cut([5.0, 5.0, 5.0, 9.0]) == pytest.approx(5.0)


def test_outliers_alone_fail_the_mean_as_often_as_they_occur():
    # Facts 5, n = 20, threshold .008: P(outlier) .332 and P(fail) .331 at 2 %.
    rng = np.random.default_rng(2)
    x = draw(rng, 1, 20_000, eps=0.02)[0]
    got = pass_rate(x, 0.008, 20, rng, cut=0.05)
    assert 1 - got.estimate == pytest.approx(0.331, abs=0.03)
    assert got.lower < got.estimate < got.upper


def decisions(rng, n, trials=60, **after):
    return [compare_samples(draw(rng, 1, n)[0], draw(rng, 1, n, **after)[0], rng, 0.05).change for _ in range(trials)]


def test_a_grown_core_is_a_shift():
    # Facts 5: x1.5 at n = 100 is found with .95.
    found = decisions(np.random.default_rng(3), 100, median=0.003)
    assert sum(change in {Change.SHIFT, Change.BOTH} for change in found) >= 47
    assert found.count(Change.SHIFT) >= 45


def test_more_outliers_are_not_taken_for_a_shift():
    # Facts 5: 1 % -> 8 % at n = 100: outlier count .65, rank test .17.
    found = decisions(np.random.default_rng(4), 100, eps=0.08)
    assert found.count(Change.MORE_OUTLIERS) >= 20
    assert found.count(Change.SHIFT) + found.count(Change.BOTH) <= 24


def test_both_changes_are_named_and_equal_samples_are_not():
    rng = np.random.default_rng(5)
    assert compare_samples(draw(rng, 1, 400)[0], draw(rng, 1, 400, 0.006, 0.2)[0], rng).change is Change.BOTH
    # Two tests at .05 each: 6 of 60 expected at most; more than 17 has probability below 1e-4.
    assert sum(change is not Change.NONE for change in decisions(rng, 100)) <= 17


def test_the_interval_of_the_pass_rate_covers_where_a_bootstrap_does_not():
    rng = np.random.default_rng(6)
    truth = (draw(rng, 100_000, 32).mean(1) < 0.008).mean()
    assert truth == pytest.approx(0.814, abs=0.006)
    covered = []
    for _ in range(120):
        got = pass_rate(draw(rng, 1, 60)[0], 0.008, 32, rng, cut=0.05)
        covered.append(got.lower <= truth <= got.upper)
    # Facts 5: .98 measured; a bootstrap covers .47. Below .88 has probability 1e-4 at .98 and is far from .47.
    assert np.mean(covered) >= 0.88


def test_without_an_outlier_the_upper_limit_of_their_rate_speaks():
    got = pass_rate([0.001, 0.002, 0.003] * 20, 0.008, 32, np.random.default_rng(7))
    assert (got.n_outliers, got.estimate, got.upper) == (0, 1.0, 1.0)
    # Clopper-Pearson upper limit of 0/60 is .0596: (1 - .0596)^32 = .140.
    assert got.lower == pytest.approx(0.140, abs=2e-3)


WRONG = {
    "empty": lambda: summarise([]),
    "not finite": lambda: summarise([1.0, np.nan]),
    "no core": lambda: pass_rate([1.0, 2.0], 1.0, 3, np.random.default_rng(0), cut=0.5),
    "no samples": lambda: pass_rate([1.0], 1.0, 0, np.random.default_rng(0)),
}


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_wrong_samples_are_named(make):
    with pytest.raises(ValueError):
        make()


@pytest.mark.parametrize("value", [123.0, 0.003, 7e-12, 1e300])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_equal_values_are_no_outliers_of_each_other(value, n):
    assert summarise([value] * n).n_outliers == 0
