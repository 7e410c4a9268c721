"""Exact tests against printed values, scipy, and enumeration; the plain sentence."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln, logsumexp

from service.stats.chan_zhang import binomial_pmf
from service.stats.compare import (
    boschloo,
    boschloo_greater,
    boschloo_greater_table,
    compare,
    fisher,
    fisher_greater_table,
    odds_ratio,
)

steady = settings(deadline=None, derandomize=True, max_examples=40)
small = st.integers(1, 25).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def test_eighteen_against_seven_of_twenty():
    # KL pass rates of the seeds, checked with scipy and R: Fisher .0007716, Boschloo .0002773, odds 15.3 (2.54, 174.5).
    result = compare(18, 20, 7, 20)
    assert result.p_fisher == pytest.approx(0.0007716, abs=5e-8)
    assert result.p_boschloo == pytest.approx(0.0002773, abs=5e-8)
    assert boschloo_greater(18, 20, 7, 20) == pytest.approx(0.0001386, abs=5e-8)
    ratio = result.odds_ratio
    assert (ratio.estimate, ratio.lower, ratio.upper) == pytest.approx((15.3407, 2.53878, 174.533), rel=1e-4)
    assert result.left_out == ()
    assert result.sentence == (
        "The pass rate fell from 18/20 (90%) to 7/20 (35%), by 26 to 75 percentage points (95% interval, "
        "Miettinen-Nurminen); chance alone would rarely do that (p = 0.00028)."
    )


@pytest.mark.parametrize(
    ("failures", "p_fisher", "p_boschloo"),
    [(3, 0.214, 0.134), (4, 0.090, 0.0528), (5, 0.035, 0.0173), (6, 0.0124, 0.0048)],
)
def test_none_against_some_of_eleven(failures, p_fisher, p_boschloo):
    assert fisher(0, 11, failures, 11) == pytest.approx(p_fisher, abs=5e-4)
    assert boschloo(0, 11, failures, 11) == pytest.approx(p_boschloo, abs=5e-4)


def test_boschloo_values_of_scipys_own_tests():
    # scipy/stats/tests/test_hypotests.py, class TestBoschlooExact; its columns are the samples.
    assert boschloo(2, 10, 7, 9) == pytest.approx(0.01977228, abs=1e-7)
    assert boschloo(5, 6, 0, 4) == pytest.approx(0.01373073, abs=1e-7)
    assert boschloo_greater(24, 61, 10, 35) == pytest.approx(0.1512882, abs=1e-7)


@steady
@given(small, small)
def test_fisher_and_odds_ratio_equal_scipy(first, second):
    from scipy.stats import fisher_exact
    from scipy.stats.contingency import odds_ratio as scipy_odds_ratio

    (k1, n1), (k2, n2) = first, second
    table = [[k1, n1 - k1], [k2, n2 - k2]]
    assert fisher(k1, n1, k2, n2) == pytest.approx(fisher_exact(table)[1], rel=1e-9)
    assert fisher_greater_table(n1, n2)[k1, k2] == pytest.approx(
        fisher_exact(table, alternative="greater")[1], rel=1e-9
    )
    if 0 < k1 + k2 < n1 + n2:
        theirs = scipy_odds_ratio(np.array(table))
        limits = theirs.confidence_interval(0.95)
        ours = odds_ratio(k1, n1, k2, n2)
        assert (ours.estimate, ours.lower, ours.upper) == pytest.approx(
            (theirs.statistic, limits.low, limits.high), rel=1e-5
        )


@steady
@given(small, small)
def test_boschloo_is_the_largest_tail_over_a_fine_grid_and_symmetric(first, second):
    (k1, n1), (k2, n2) = first, second
    one_sided = boschloo_greater(k1, n1, k2, n2)
    table = fisher_greater_table(n1, n2)
    is_extreme = table <= table[k1, k2] * (1 + 1e-7)
    rates = np.linspace(0.0, 1.0, 2001)
    tails = np.einsum("ri,ij,rj->r", binomial_pmf(n1, rates), is_extreme.astype(float), binomial_pmf(n2, rates))
    assert tails.max() - 1e-12 <= one_sided <= tails.max() + 1e-4
    assert boschloo_greater_table(n1, n2)[k1, k2] == pytest.approx(one_sided, abs=2e-3)
    assert one_sided <= table[k1, k2] + 1e-12
    assert boschloo(k1, n1, k2, n2) == pytest.approx(boschloo(k2, n2, k1, n1))
    assert boschloo(k1, n1, k2, n2) == pytest.approx(boschloo(n2 - k2, n2, n1 - k1, n1))


def test_fisher_wastes_size_that_boschloo_uses():
    # Largest true size at nominal 0.05 and 20 runs each: Fisher .0266, Boschloo .0428 (facts 1.5, exact).
    pmf = binomial_pmf(20, np.linspace(0.0, 1.0, 201))
    for table, size in ((fisher_greater_table(20, 20), 0.0266), (boschloo_greater_table(20, 20), 0.0428)):
        reached = np.einsum("ri,ij,rj->r", pmf, (table <= 0.05).astype(float), pmf).max()
        assert reached == pytest.approx(size, abs=6e-5)


def test_equal_counts_have_a_p_value_of_one():
    assert fisher(10, 20, 10, 20) == 1.0
    assert (fisher(0, 5, 0, 7), boschloo(0, 5, 0, 7)) == (1.0, 1.0)
    assert (fisher(5, 5, 7, 7), boschloo(5, 5, 7, 7)) == (1.0, 1.0)


def test_boschloo_is_named_as_left_out_above_a_hundred_runs():
    assert compare(20, 50, 30, 50).p_boschloo is not None
    result = compare(20, 50, 30, 51)
    assert result.p_boschloo is None
    assert result.p_fisher == pytest.approx(fisher(20, 50, 30, 51))
    assert "Boschloo" in result.left_out[0]
    assert f"p = {result.p_fisher:.2g}" in result.sentence


def test_an_empty_sample_is_said_to_be_incomparable():
    result = compare(0, 0, 3, 5)
    assert (result.p_fisher, result.p_boschloo, result.difference.estimate) == (None, None, None)
    assert result.odds_ratio.estimate is None
    assert "no runs" in result.left_out[0]
    assert result.sentence == "Nothing can be compared: 0/0 against 3/5 leaves a sample without runs."
    assert compare(3, 5, 0, 0).left_out == result.left_out
    assert (fisher(0, 0, 3, 5), boschloo(0, 0, 3, 5), boschloo(3, 5, 0, 0)) == (1.0, 1.0, 1.0)


def test_odds_ratios_at_the_ends_are_zero_or_infinite():
    assert odds_ratio(0, 11, 4, 11).estimate == 0.0
    assert odds_ratio(0, 11, 4, 11).lower == 0.0
    assert odds_ratio(4, 11, 0, 11).estimate == math.inf
    assert odds_ratio(4, 11, 0, 11).upper == math.inf
    nothing = odds_ratio(0, 5, 0, 5)
    assert (nothing.estimate, nothing.lower, nothing.upper) == (None, 0.0, math.inf)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ((7, 20, 18, 20), "rose from 7/20 (35%) to 18/20 (90%), by 26 to 75 percentage points"),
        ((10, 20, 10, 20), "went from 10/20 (50%) to 10/20 (50%), a change of -30 to +30 percentage points"),
        ((10, 20, 14, 20), "went from 10/20 (50%) to 14/20 (70%), a change of -11 to +47 percentage points"),
    ],
)
def test_the_sentence_names_the_direction(table, words):
    assert words in compare(*table, noun="failure rate").sentence
    assert compare(*table, noun="failure rate").sentence.startswith("The failure rate")


def test_the_sentence_does_not_call_a_large_p_value_equality():
    sentence = compare(10, 20, 14, 20).sentence
    assert "does not show that the rates are equal" in sentence
    assert float(re.search(r"p = ([\d.e-]+)\)", sentence)[1]) > 0.05


@pytest.mark.parametrize("function", [compare, fisher, boschloo, odds_ratio])
@pytest.mark.parametrize("table", [(21, 20, 7, 20), (7, 20, 21, 20)])
def test_an_impossible_count_is_refused_by_name(function, table):
    with pytest.raises(ValueError, match="21/20"):
        function(*table)


def test_odds_ratios_of_large_samples_do_not_underflow():
    # Half against none of 2,000: the conditional law spans more than the smallest double.
    ratio = odds_ratio(1000, 2000, 0, 2000)
    assert ratio.estimate == math.inf
    # At the lower limit all 1,000 failures fall into the first sample with probability 0.025.
    k = np.arange(1001)
    terms = gammaln(2001) * 2 - gammaln(k + 1) - gammaln(2001 - k) - gammaln(1001 - k) - gammaln(1001 + k)
    terms += k * math.log(ratio.lower)
    assert math.exp(terms[1000] - logsumexp(terms)) == pytest.approx(0.025, rel=1e-6)


def test_a_sample_too_large_for_exact_laws_is_refused_by_value():
    with pytest.raises(ValueError, match="1000000000000 runs: exact comparisons take samples of at most 10,000,000"):
        compare(0, 10**12, 1, 2)
