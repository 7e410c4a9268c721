"""The two-part assertion: its false failures and what it catches, beside a mean, on the synthetic model of the facts."""

import numpy as np
import pytest

from service.stats.assertions import MeanAssertion, TwoPartAssertion, operating_curve, recommend_assertion


def healthy(seed, n=20_000, eps=0.01):
    rng = np.random.default_rng(seed)
    x = 0.002 * np.exp(0.7 * rng.standard_normal(n))
    out = rng.random(n) < eps
    x[out] = rng.uniform(0.12, 0.27, out.sum())
    return x


def test_both_parts_by_hand():
    assertion = TwoPartAssertion(n=4, most_mean=2.0, cut=10.0, most_outliers=1, trim=0.25)
    rows = np.array([[1, 1, 1, 99], [3, 3, 3, 3], [1, 1, 99, 99], [1, 1, 1, 1]], float)
    assert assertion.fails(rows).tolist() == [False, True, True, False]
    assert MeanAssertion(2.0).fails(rows).tolist() == [True, True, True, False]


def test_the_recommendation_is_the_one_of_the_facts():
    # Facts 5, n = 32, eps = 1 %: t1 = .0033, c = 3.
    got = recommend_assertion(healthy(1), 32, np.random.default_rng(2))
    assert got.most_mean == pytest.approx(0.0033, abs=2e-4)
    assert got.most_outliers == 3


def test_it_catches_a_twofold_core_where_the_mean_needs_twelve():
    x, rng = healthy(3), np.random.default_rng(4)
    two_part = operating_curve(x, 32, recommend_assertion(x, 32, rng).fails, rng)
    mean = operating_curve(x, 32, MeanAssertion(0.0226).fails, rng)
    assert two_part.false_fail <= 3e-3
    assert mean.false_fail <= 3e-3
    # Facts 5: x1.9 against x12, outlier rates of about 20 % for both.
    assert two_part.smallest_shift_caught == 2.0
    assert mean.smallest_shift_caught == 12.0
    assert two_part.smallest_rate_caught in {0.15, 0.2}
    assert list(two_part.at_shifts) == pytest.approx(sorted(two_part.at_shifts), abs=0.02)


def test_without_outliers_the_curve_has_no_rates_and_one_is_still_allowed_for():
    x, rng = np.linspace(1.0, 2.0, 50), np.random.default_rng(5)
    assertion = recommend_assertion(x, 20, rng)
    assert assertion.most_outliers >= 1
    curve = operating_curve(x, 20, assertion.fails, rng)
    assert (curve.rates, curve.at_rates, curve.smallest_rate_caught) == ((), (), None)
    assert operating_curve(x, 20, MeanAssertion(1e9).fails, rng).smallest_shift_caught is None


WRONG = {
    "one value": lambda: recommend_assertion([1.0, 2.0], 1, np.random.default_rng(0)),
    "false fail": lambda: recommend_assertion([1.0, 2.0], 5, np.random.default_rng(0), false_fail=0.7),
}


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_wrong_requests_are_named(make):
    with pytest.raises(ValueError):
        make()


def test_a_cut_below_every_value_is_named():
    with pytest.raises(ValueError, match=r"no value is at or below the cut 0\.5: give a cut that leaves a core"):
        operating_curve([1.0, 2.0], 4, MeanAssertion(1.5).fails, np.random.default_rng(0), cut=0.5)


@pytest.mark.parametrize("values", [[0.003], [123.0] * 5, [0.0] * 4, [0.0, 0.0, 0.0, 1.0]])
def test_repeated_values_do_not_fail_their_own_assertion(values):
    rng = np.random.default_rng(0)
    recommended = recommend_assertion(values, 32, rng)
    assert operating_curve(values, 32, recommended.fails, rng).false_fail <= 5e-3
