"""Mixture likelihood ratios: printed values, the definition term by term, and validity block by block."""

import math

import numpy as np
import pytest

from service.stats.mixture import Prior, beta_alternatives, difference_mixture, prior_alternatives, ratio_mixture
from service.stats.score import constrained_rates

# facts 2.3 (exact): (a, b, n) -> log e against "equal or reversed", priors 50/50 and cure .5.
REFERENCE = [
    ((13, 2, 20), 4.9109, 4.7014),
    ((4, 0, 4), 3.7936, 3.7481),
    ((2, 0, 20), 0.3275, 0.5567),
    ((7, 7, 11), -2.0359, -2.2966),
]
PRIORS = list(Prior)


@pytest.mark.parametrize(("state", "fifty_fifty", "cure"), REFERENCE)
def test_log_e_reproduces_the_reference(state, fifty_fifty, cure):
    a, b, n = state
    assert float(ratio_mixture(Prior.FIFTY_FIFTY, 1.0).log_e(n, a, b)) == pytest.approx(fifty_fifty, abs=5.1e-5)
    assert float(ratio_mixture(Prior.CURE, 1.0).log_e(n, a, b)) == pytest.approx(cure, abs=5.1e-5)


def test_as_many_alternatives_are_kept_as_in_the_reference():
    kept = [len(ratio_mixture(prior, 1.0).log_weight) for prior in (Prior.FIFTY_FIFTY, Prior.CURE)]
    assert kept == [183, 56]


@pytest.mark.parametrize("prior", PRIORS)
def test_prior_weights_sum_to_one_and_rates_are_rates(prior):
    high, low, weight = prior_alternatives(prior)
    assert weight.sum() == pytest.approx(1.0)
    assert weight.min() > 0.0
    assert 0.0 < min(high.min(), low.min()) <= max(high.max(), low.max()) < 1.0


def test_the_documented_base_rates():
    # facts 2.3 and 2.4.
    cure_high, cure_low, _ = prior_alternatives(Prior.CURE)
    assert cure_high[::4].tolist() == [0.03, 0.06, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97]
    assert cure_low[-4:] == pytest.approx([0.002, 0.15 * 0.97, 0.35 * 0.97, 0.6 * 0.97])
    high, low, weight = prior_alternatives(Prior.SAME)
    assert low[::2].tolist() == [0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97]
    assert (high / low).reshape(12, 2) == pytest.approx(np.tile([1.0, 0.85], (12, 1)))
    assert weight.reshape(12, 2) == pytest.approx(np.tile([0.7 / 12, 0.3 / 12], (12, 1)))


def test_the_expectation_of_a_block_is_the_largest_over_the_alternatives():
    mixture = ratio_mixture(Prior.CURE, 0.005)
    high, low, _ = prior_alternatives(Prior.CURE)
    low0 = projection(high, low, 0.005)
    high0 = 0.005 * low0
    by_hand = (0.3 * high / high0 + 0.7 * (1 - high) / (1 - high0)) * (0.8 * low / low0 + 0.2 * (1 - low) / (1 - low0))
    assert float(mixture.block_expectation(0.3, 0.8)) == pytest.approx(by_hand.max(), rel=1e-6)


def test_beta_alternatives_are_midpoint_quantiles():
    from scipy.stats import beta

    high, low, weight = beta_alternatives(0.7, 0.7, 0.5, 1.0, 14)
    quantiles = (np.arange(14) + 0.5) / 14
    assert high.reshape(14, 14)[:, 0] == pytest.approx(beta.ppf(quantiles, 0.7, 0.7))
    assert low.reshape(14, 14)[0] == pytest.approx(np.maximum(beta.ppf(quantiles, 0.5, 1.0), 1e-4))
    assert weight.tolist() == [1 / 196] * 196


@pytest.mark.parametrize("ratio", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("prior", PRIORS)
def test_log_e_is_the_mixture_of_likelihood_ratios_to_projections(prior, ratio):
    if prior is Prior.SAME and ratio == 1.0:
        with pytest.raises(ValueError, match="inside the null"):
            ratio_mixture(prior, ratio)
        return
    high, low, weight = prior_alternatives(prior)
    is_outside = high > ratio * low + 1e-9
    high, low, weight = high[is_outside], low[is_outside], weight[is_outside]
    low0 = projection(high, low, ratio)
    high0 = ratio * low0
    likelihood = (high / high0) ** 11 * ((1 - high) / (1 - high0)) ** 9
    likelihood *= (low / low0) ** 3 * ((1 - low) / (1 - low0)) ** 17
    expected = math.log(np.sum(weight * likelihood) / np.sum(weight))
    assert float(ratio_mixture(prior, ratio).log_e(20, 11, 3)) == pytest.approx(expected, abs=1e-9)


def projection(high, low, ratio):
    """The p of the null point (ratio p, p) with the smallest divergence: the root of its derivative."""
    below, above = np.zeros_like(low), np.ones_like(low)
    for _ in range(60):
        p = (below + above) / 2
        is_above = (ratio * p - high) / (1 - ratio * p) + (p - low) / (1 - p) > 0
        below, above = np.where(is_above, below, p), np.where(is_above, p, above)
    return p


@pytest.mark.parametrize("n", [1, 2, 20, 100])
def test_the_table_of_all_states_equals_the_states_one_by_one(n):
    for mixture in (ratio_mixture(Prior.FIFTY_FIFTY, 1.0), ratio_mixture(Prior.SAME, 0.5)):
        k = np.arange(n + 1)
        assert mixture.log_e_table(n) == pytest.approx(mixture.log_e(n, k[:, None], k[None, :]), abs=1e-9)


@pytest.mark.parametrize("ratio", [0.0, -0.5, 1.01])
def test_a_ratio_outside_zero_to_one_is_refused(ratio):
    with pytest.raises(ValueError, match=str(ratio)):
        ratio_mixture(Prior.CURE, ratio)


def test_a_difference_null_of_zero_is_the_ratio_null_of_one():
    prior = prior_alternatives(Prior.CURE)
    by_difference = difference_mixture(*prior, 0.0)
    states = np.arange(0, 21)
    assert by_difference.log_e(20, states, 3) == pytest.approx(ratio_mixture(Prior.CURE, 1.0).log_e(20, states, 3))
    assert constrained_rates(0.7, 1, 0.1, 1, 0.0) == (pytest.approx(0.4), pytest.approx(0.4))
