"""The flakiness score against the recovered truth, its calibration, and the two signs of a flake."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import betabinom

from service.stats.flakiness import (
    DEFAULT_PRIOR,
    FlakinessPrior,
    discordance,
    fit_prior,
    mean_rate,
    never_fails_probability,
    rate_quantiles,
    score,
)


def suite(seed, n_tests=10_000):
    rng = np.random.default_rng(seed)
    never = rng.random(n_tests) < 0.9
    rate = np.where(never, 0, rng.beta(0.35, 4.0, n_tests))
    runs = rng.choice([10, 30, 100, 300, 1000], n_tests)
    return rate, rng.binomial(runs, rate), runs


def test_the_fit_recovers_the_tabulated_values():
    # Statistics facts 6: this data set (seed 0) gives (.353, 4.01, .901) for the truth (.35, 4, .9).
    _, fails, runs = suite(0)
    prior = fit_prior(fails, runs)
    assert (prior.a, prior.b, prior.never) == pytest.approx((0.353, 4.01, 0.901), abs=6e-3)


def log_likelihood(fails, runs, prior):
    chance = (1 - prior.never) * betabinom.pmf(fails, runs, prior.a, prior.b) + prior.never * (fails == 0)
    return np.log(chance).sum()


@pytest.mark.parametrize("seed", range(1, 9))
def test_no_fit_is_less_likely_than_the_truth(seed):
    _, fails, runs = suite(seed, 3000)
    truth = FlakinessPrior(0.35, 4.0, 0.9)
    assert log_likelihood(fails, runs, fit_prior(fails, runs)) >= log_likelihood(fails, runs, truth) - 0.01


def test_ninety_percent_intervals_cover_and_the_mean_beats_the_raw_rate():
    rate, fails, runs = suite(0)
    prior = fit_prior(fails, runs)
    low, high = rate_quantiles(fails, runs, prior, (0.05, 0.95)).T
    failed = fails > 0
    # About 800 tests failed: 0.90 +- 4 standard errors.
    assert ((low <= rate) & (rate <= high))[failed].mean() == pytest.approx(0.9, abs=0.043)
    few = runs == 10

    def error(estimate):
        return np.sqrt(np.mean((estimate - rate)[few] ** 2))

    # Facts 6: .0191 against .0222 on this data set.
    assert error(mean_rate(fails, runs, prior)) == pytest.approx(0.0191, abs=2e-4)
    assert error(fails / runs) == pytest.approx(0.0222, abs=2e-4)


def test_a_score_rises_with_the_evidence_not_with_the_raw_rate():
    got = score([1, 50, 0, 500], [2, 100, 1000, 1000], DEFAULT_PRIOR)
    assert got[2] == 0.0
    assert got[0] < 0.1 < got[1] < got[3] < 0.5


@given(st.integers(0, 200), st.integers(0, 200))
def test_quantiles_are_ordered_rates(fails, passes):
    low, middle, high = rate_quantiles([fails], [fails + passes], DEFAULT_PRIOR)[0]
    assert 0 <= low <= middle <= high <= 1


def test_a_clean_test_is_the_likelier_never_to_fail_the_longer_it_ran():
    short, long, failed = never_fails_probability([0, 0, 1], [5, 500, 500], DEFAULT_PRIOR)
    assert 0.9 < short < long < 1
    assert failed == 0
    assert rate_quantiles([0], [500], DEFAULT_PRIOR, (0.9,))[0, 0] == 0.0


def test_too_few_failures_to_fit_give_the_default():
    assert fit_prior([0, 0, 1, 2], [10, 10, 10, 10]) is DEFAULT_PRIOR


def test_a_flake_is_discordant_at_one_commit_and_a_regression_is_not():
    # Statistics facts 6: D = 1 - .8^3 - .2^3 = .48 and transitions 2(.2)(.8) = .32 for a 0.2 flake.
    rng = np.random.default_rng(0)
    commit = np.repeat(np.arange(20_000), 3)
    flake = discordance(rng.random(60_000) < 0.2, commit)
    assert (flake.share_mixed, flake.transition_rate) == pytest.approx((0.48, 0.32), abs=0.012)
    regression = discordance(np.repeat((np.arange(50) >= 25) & (np.arange(50) < 36), 3), np.repeat(np.arange(50), 3))
    assert (regression.mixed, regression.repeated, regression.turns, regression.pairs) == (0, 50, 2, 149)


def test_discordance_without_repeats_is_unknown():
    assert discordance([], []).share_mixed is None
    one = discordance([True], [3])
    assert (one.share_mixed, one.transition_rate) == (None, None)


WRONG = {
    "more failures than runs": lambda: score([3], [2], DEFAULT_PRIOR),
    "two axes": lambda: score([[1]], [[2]], DEFAULT_PRIOR),
    "quantile above one": lambda: rate_quantiles([1], [2], DEFAULT_PRIOR, (1.5,)),
    "lengths": lambda: discordance([True], [1, 2]),
}


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_wrong_counts_are_named(make):
    with pytest.raises(ValueError):
        make()
