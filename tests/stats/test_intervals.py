"""Intervals against printed tables, an independent computation, and their own properties."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.stats.chan_zhang import binomial_pmf, chan_zhang
from service.stats.intervals import (
    Method,
    clopper_pearson,
    critical_value,
    difference_interval,
    koopman,
    lower_bound,
    miettinen_nurminen,
    newcombe,
    share_explained,
    upper_bound,
    wilson,
)
from service.stats.score import constrained_rates, ratio_chi_square, score_z

# Newcombe 1998, Statistics in Medicine 17:873-890, Table II (printed to four places).
NEWCOMBE_TABLE_2 = [
    # counts, method 10, Miettinen-Nurminen, Mee
    ((56, 70, 48, 80), (0.0524, 0.3339), (0.0528, 0.3382), (0.0533, 0.3377)),
    ((9, 10, 3, 10), (0.1705, 0.8090), (0.1700, 0.8406), (0.1821, 0.8370)),
    ((6, 7, 2, 7), (0.0582, 0.8062), (0.0342, 0.8534), (0.0544, 0.8478)),
    ((5, 56, 0, 29), (-0.0381, 0.1926), (-0.0326, 0.1933), (-0.0313, 0.1926)),
    ((0, 10, 0, 20), (-0.1611, 0.2775), (-0.1658, 0.2844), (-0.1611, 0.2775)),
    ((0, 10, 0, 10), (-0.2775, 0.2775), (-0.2879, 0.2879), (-0.2775, 0.2775)),
    ((10, 10, 0, 20), (0.6791, 1.0), (0.7156, 1.0), (0.7225, 1.0)),
    ((10, 10, 0, 10), (0.6075, 1.0), (0.6636, 1.0), (0.6777, 1.0)),
]

# exact2x2 slow tests (StatXact 11, SAS); diff-binom-confint reference files (9/10 - 3/10). Limits are rounded outwards
# by a grid step of 0.001. Larger tables: tests/calibration/test_interval_coverage.py.
CHAN_ZHANG = [
    ((6, 13, 2, 7), (-0.3108, 0.5787), 0.0021),
    ((13, 13, 0, 7), (0.5904, 1.0), 0.0021),
    ((9, 11, 4, 12), (0.0616, 0.7968), 0.0021),
    ((9, 10, 3, 10), (0.1608, 0.8795), 0.0021),
]

steady = settings(deadline=None, derandomize=True, max_examples=25)
counts = st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
few = st.integers(1, 6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
many = st.integers(41, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@pytest.mark.parametrize(("table", "method_10", "score", "mee"), NEWCOMBE_TABLE_2)
def test_newcombe_1998_table_2(table, method_10, score, mee):
    assert newcombe(*table) == pytest.approx(method_10, abs=5.1e-5)
    assert miettinen_nurminen(*table) == pytest.approx(score, abs=5.1e-5)
    # Mee is the same statistic without the factor N / (N - 1) in the variance.
    z = critical_value(0.95) * math.sqrt(1 - 1 / (table[1] + table[3]))
    assert miettinen_nurminen(*table, confidence=math.erf(z / math.sqrt(2))) == pytest.approx(mee, abs=5.1e-5)


def test_newcombe_of_fagerland_lydersen_and_laake_2015():
    # Statistical Methods in Medical Research 24:224-254, printed to (0.019, 0.34).
    assert newcombe(7, 34, 1, 34) == pytest.approx((0.019, 0.34), abs=0.0051)


def test_miettinen_nurminen_equals_prop_cis_diffscoreci():
    assert miettinen_nurminen(7, 34, 1, 34) == pytest.approx((0.0270416, 0.3452912), abs=1e-7)


@pytest.mark.parametrize(
    ("failures", "limits"),
    [(3, (-0.032, 0.572)), (4, (0.049, 0.652)), (5, (0.131, 0.725)), (6, (0.214, 0.791))],
)
def test_miettinen_nurminen_of_none_against_some_of_eleven(failures, limits):
    assert miettinen_nurminen(failures, 11, 0, 11) == pytest.approx(limits, abs=6e-4)


@pytest.mark.parametrize(("table", "limits", "within"), CHAN_ZHANG)
def test_chan_zhang_reproduces_the_published_limits(table, limits, within):
    assert chan_zhang(*table) == pytest.approx(limits, abs=within)


@pytest.mark.parametrize("table", [(6, 13, 2, 7), (9, 11, 4, 12), (9, 10, 3, 10)])
def test_chan_zhang_rounds_outwards(table):
    published = {key: limits for key, limits, _ in CHAN_ZHANG}[table]
    lower, upper = chan_zhang(*table)
    assert lower <= published[0] + 5e-5
    assert upper >= published[1] - 5e-5
    # On the documented grid: multiples of 0.001.
    assert (lower, upper) == (round(lower, 3), round(upper, 3))


@pytest.mark.parametrize(
    ("failures", "runs", "expected_wilson", "expected_exact"),
    [
        (18, 20, (0.699, 0.972), (0.683, 0.988)),
        (7, 20, (0.181, 0.567), (0.154, 0.592)),
        (0, 11, (0.0, 0.2588), (0.0, 0.2849)),
    ],
)
def test_single_rates(failures, runs, expected_wilson, expected_exact):
    assert wilson(failures, runs) == pytest.approx(expected_wilson, abs=5e-4)
    assert clopper_pearson(failures, runs) == pytest.approx(expected_exact, abs=5e-4)


@steady
@given(counts, st.sampled_from([0.8, 0.95, 0.99]))
def test_clopper_pearson_and_wilson_solve_their_equations(count, confidence):
    k, n = count
    tail = (1 - confidence) / 2
    lower, upper = clopper_pearson(k, n, confidence)
    pmf = binomial_pmf(n, np.array([lower, upper]))
    assert (lower == 0.0) if k == 0 else pmf[0, k:].sum() == pytest.approx(tail, rel=1e-6)
    assert (upper == 1.0) if k == n else pmf[1, : k + 1].sum() == pytest.approx(tail, rel=1e-6)
    low, high = wilson(k, n, confidence)
    z = critical_value(confidence)
    for limit, is_open in ((low, k > 0), (high, k < n)):
        if is_open:
            assert abs(k / n - limit) == pytest.approx(z * math.sqrt(limit * (1 - limit) / n), rel=1e-9)
    assert 0.0 <= low <= k / n <= high <= 1.0


def test_one_sided_bounds():
    # Exact rule: 1 - alpha^(1/n) at 0/n; 4/20 and 13/20 from the planning example of the facts.
    assert [upper_bound(0, n) for n in (11, 20, 59)] == pytest.approx([1 - 0.05 ** (1 / n) for n in (11, 20, 59)])
    assert upper_bound(0, 11) == pytest.approx(0.2384, abs=5e-5)
    assert lower_bound(13, 20) == pytest.approx(0.442, abs=5e-4)
    assert lower_bound(2, 20) == pytest.approx(0.018, abs=5e-4)
    assert lower_bound(5, 5) == pytest.approx(0.05**0.2)
    assert (lower_bound(0, 9), upper_bound(9, 9)) == (0.0, 1.0)
    assert (lower_bound(0, 0), upper_bound(0, 0)) == (0.0, 1.0)


@settings(steady, max_examples=15)
@given(few, st.one_of(few, many))
@example((0, 11), (4, 11))
@example((7, 7), (0, 3))
def test_a_difference_interval_holds_the_estimate_and_mirrors(first, second):
    interval, mirrored = difference_interval(*first, *second), difference_interval(*second, *first)
    assert -1.0 <= interval.lower <= interval.estimate <= interval.upper <= 1.0
    assert (mirrored.lower, mirrored.upper) == pytest.approx((-interval.upper, -interval.lower), abs=1e-9)
    assert mirrored.method is interval.method
    wider = difference_interval(*first, *second, confidence=0.99)
    assert wider.lower <= interval.lower + 1e-9
    assert wider.upper >= interval.upper - 1e-9


@pytest.mark.parametrize(
    ("table", "method", "reason"),
    [
        ((3, 10, 5, 10), Method.MIETTINEN_NURMINEN, "at least 10 runs"),
        ((3, 9, 5, 10), Method.CHAN_ZHANG, "fewer than 10 runs"),
        ((3, 10, 5, 9), Method.CHAN_ZHANG, "fewer than 10 runs"),
        ((0, 40, 5, 40), Method.CHAN_ZHANG, "rate of 0 or 1"),
        ((5, 40, 0, 40), Method.CHAN_ZHANG, "rate of 0 or 1"),
        ((12, 12, 5, 12), Method.CHAN_ZHANG, "rate of 0 or 1"),
        ((5, 12, 12, 12), Method.CHAN_ZHANG, "rate of 0 or 1"),
        ((0, 41, 5, 40), Method.MIETTINEN_NURMINEN, "more than 40 runs"),
        ((3, 9, 5, 41), Method.MIETTINEN_NURMINEN, "more than 40 runs"),
        ((0, 0, 5, 10), Method.NO_DATA, "no runs"),
        ((5, 10, 0, 0), Method.NO_DATA, "no runs"),
    ],
)
def test_the_interval_shown_is_chosen_by_the_rule_of_the_design(table, method, reason, monkeypatch):
    # The exact interval of 40 runs takes half a second; which one is asked for is what is tested here.
    monkeypatch.setattr("service.stats.intervals.chan_zhang", lambda *arguments: (-len(arguments), arguments[:4]))
    interval = difference_interval(*table)
    assert interval.method is method
    assert reason in interval.reason
    if method is Method.CHAN_ZHANG:
        assert (interval.lower, interval.upper) == (-5, table)
    elif method is Method.MIETTINEN_NURMINEN:
        assert (interval.lower, interval.upper) == miettinen_nurminen(*table)
    else:
        assert (interval.lower, interval.upper, interval.estimate) == (-1.0, 1.0, None)


@pytest.mark.parametrize("method", [newcombe, miettinen_nurminen])
def test_an_empty_arm_says_nothing_about_a_difference(method):
    assert method(0, 0, 3, 10) == method(3, 10, 0, 0) == method(0, 0, 0, 0) == (-1.0, 1.0)


def test_an_empty_count_says_nothing_about_a_rate():
    assert wilson(0, 0) == clopper_pearson(0, 0) == (0.0, 1.0)


def test_koopman_ratio_of_thirteen_to_two_in_twenty():
    assert koopman(13, 20, 2, 20) == pytest.approx((2.014, 24.000), abs=1e-3)


@steady
@given(counts, counts)
def test_koopman_limits_are_where_the_statistic_reaches_its_quantile(first, second):
    (k1, n1), (k2, n2) = first, second
    lower, upper = koopman(k1, n1, k2, n2)
    limit = critical_value(0.95) ** 2
    for ratio, is_open in ((lower, k1 > 0), (upper, k2 > 0)):
        if is_open:
            assert independent_ratio_statistic(k1, n1, k2, n2, ratio) == pytest.approx(limit, rel=1e-4)
    assert (lower == 0.0) == (k1 == 0)
    assert (upper == math.inf) == (k2 == 0)
    swapped = koopman(k2, n2, k1, n1)
    assert (lower, upper) == pytest.approx(
        tuple(math.inf if limit == 0 else 1 / limit for limit in reversed(swapped)), rel=1e-9
    )


def independent_ratio_statistic(k1, n1, k2, n2, ratio):
    """Pearson statistic at the restricted estimate, found by maximising the likelihood numerically."""
    from scipy.optimize import minimize_scalar
    from scipy.special import xlogy

    top = min(1.0, 1.0 / ratio)

    def loss(p2):
        p1 = ratio * p2
        return -(xlogy(k1, p1) + xlogy(n1 - k1, 1 - p1) + xlogy(k2, p2) + xlogy(n2 - k2, 1 - p2))

    p2 = minimize_scalar(loss, bounds=(0.0, top), method="bounded", options={"xatol": 1e-13}).x
    p1 = ratio * p2
    return (k1 - n1 * p1) ** 2 / (n1 * p1 * (1 - p1)) + (k2 - n2 * p2) ** 2 / (n2 * p2 * (1 - p2))


def test_koopman_of_empty_or_clean_arms_is_unbounded():
    assert koopman(0, 0, 3, 10) == koopman(3, 10, 0, 0) == koopman(0, 20, 0, 20) == (0.0, math.inf)


def test_a_single_failure_bounds_the_ratio_on_one_side():
    assert koopman(1, 20, 0, 20)[0] > 0.0
    assert koopman(1, 20, 0, 20)[1] == math.inf
    # Far from the data, where a difference of two large numbers would have lost the rate.
    assert ratio_chi_square(1, 20, 1, 20, 1e6) == pytest.approx(
        independent_ratio_statistic(1, 20, 1, 20, 1e6), rel=1e-3
    )


def test_koopman_of_two_arms_that_always_fail_holds_one():
    lower, upper = koopman(20, 20, 20, 20)
    assert lower == pytest.approx(1 / upper)
    assert 0.8 < lower < 1.0
    assert ratio_chi_square(20, 20, 20, 20, 1.0) == 0.0


def test_share_explained_is_one_minus_the_ratio():
    share = share_explained(13, 20, 2, 20)
    low, high = koopman(2, 20, 13, 20)
    assert (share.lower, share.upper, share.estimate) == pytest.approx((1 - high, 1 - low, 1 - 2 / 13))
    assert share_explained(13, 20, 0, 20).upper == 1.0
    unknown = share_explained(0, 20, 2, 20)
    assert (unknown.estimate, unknown.lower) == (None, -math.inf)
    assert "never failed" in unknown.reason
    assert unknown.upper == pytest.approx(1 - koopman(2, 20, 0, 20)[0])
    for empty in (share_explained(0, 0, 2, 20), share_explained(2, 20, 0, 0)):
        assert (empty.estimate, empty.method) == (None, Method.NO_DATA)
        assert (empty.lower, empty.upper) == (-math.inf, 1.0)
        assert "no runs" in empty.reason


@pytest.mark.parametrize("arguments", [(3, 2), (-1, 2)])
@pytest.mark.parametrize("function", [wilson, clopper_pearson, upper_bound, lower_bound])
def test_an_impossible_count_is_refused_by_name(function, arguments):
    with pytest.raises(ValueError, match=f"{arguments[0]}/{arguments[1]}"):
        function(*arguments)


@pytest.mark.parametrize("function", [newcombe, miettinen_nurminen, koopman, difference_interval, share_explained])
@pytest.mark.parametrize("table", [(21, 20, 1, 20), (1, 20, 21, 20)])
def test_an_impossible_count_of_two_is_refused_by_name(function, table):
    with pytest.raises(ValueError, match="21/20"):
        function(*table)


def test_wilson_ends_exactly_at_zero_and_one():
    assert {wilson(0, n)[0] for n in range(1, 61)} == {0.0}
    assert {wilson(n, n)[1] for n in range(1, 61)} == {1.0}


def test_any_confidence_between_the_ends_is_served():
    narrow, wide = wilson(1, 2, 0.005), wilson(1, 2, 0.995)
    assert wide[0] < 0.1 < 0.49 < narrow[0] < 0.5 < narrow[1] < 0.51 < 0.9 < wide[1]


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0, -0.1])
def test_an_impossible_confidence_is_refused(confidence):
    for call in (wilson, clopper_pearson, upper_bound, lower_bound):
        with pytest.raises(ValueError, match="confidence"):
            call(1, 2, confidence)
    with pytest.raises(ValueError, match="confidence"):
        difference_interval(1, 2, 1, 2, confidence)


@steady
@given(counts, counts, st.floats(-0.99, 0.99))
def test_the_restricted_estimate_maximises_the_likelihood(first, second, difference):
    from scipy.special import xlogy

    (k1, n1), (k2, n2) = first, second

    def log_likelihood(p2):
        p1 = np.clip(p2 + difference, 0.0, 1.0)
        return xlogy(k1, p1) + xlogy(n1 - k1, 1 - p1) + xlogy(k2, p2) + xlogy(n2 - k2, 1 - p2)

    p1, p2 = constrained_rates(k1, n1, k2, n2, difference)
    assert float(p1 - p2) == pytest.approx(difference, abs=1e-12)
    grid = np.linspace(max(0.0, -difference), min(1.0, 1.0 - difference), 501)
    assert np.max(log_likelihood(grid)) <= float(log_likelihood(p2)) + 1e-6


def test_the_score_statistic_by_hand():
    # p1 = p2 = 25/40 under equality: (0.9 - 0.35) / sqrt(2 * (25/40) * (15/40) / 20 * 40/39).
    by_hand = 0.55 / math.sqrt(2 * 25 * 15 / (40 * 40 * 20) * 40 / 39)
    assert float(score_z(18, 20, 7, 20, 0.0)) == pytest.approx(by_hand)
    assert math.erfc(by_hand / math.sqrt(2)) == pytest.approx(0.000389, abs=5e-7)
    assert score_z([0, 1, 0], 1, [0, 0, 1], 1, [0.0, 1.0, 1.0]) == pytest.approx([0.0, 0.0, -1e6])


def test_binomial_probabilities_equal_scipy():
    from scipy.stats import binom

    p = np.array([0.0, 1e-6, 0.2, 0.5, 0.97, 1.0])
    for n in (0, 1, 7, 100):
        assert binomial_pmf(n, p) == pytest.approx(binom.pmf(np.arange(n + 1), n, p[:, None]), rel=1e-9, abs=1e-280)


def test_a_confidence_next_to_one_has_a_critical_value():
    assert critical_value(1 - 2**-53) == pytest.approx(8.3, abs=0.1)


def largest_tail(is_extreme, n1, n2, difference):
    """The largest probability of the extreme tables under p1 - p2 = difference, the nuisance rate on 401 points."""
    share = (1 - np.cos(np.pi * np.linspace(0.0, 1.0, 401))) / 2
    low, high = max(0.0, -difference), min(1.0, 1.0 - difference)
    p2 = low + (high - low) * share
    first = binomial_pmf(n1, np.clip(p2 + difference, 0.0, 1.0)) @ is_extreme
    return float(np.max(np.sum(first * binomial_pmf(n2, p2), axis=1)))


@pytest.mark.parametrize(
    ("table", "p_value"),
    [((2, 10, 7, 9), 0.019210815430), ((43, 53, 40, 79), 0.000362832367232)],
    ids=["small", "large"],
)
def test_barnards_test_from_the_score_statistic_has_scipys_reference_values(table, p_value):
    # Source: SciPy's own tests of barnard_exact (pooled, two-sided). Barnard's order of tables is the score statistic
    # at a difference of 0, and the tails are those that the exact intervals sum.
    k1, n1, k2, n2 = table
    z = np.abs(np.round(score_z(np.arange(n1 + 1.0)[:, None], n1, np.arange(n2 + 1.0)[None], n2, 0.0), 10))
    assert largest_tail((z >= z[k1, k2]).astype(float), n1, n2, 0.0) == pytest.approx(p_value, rel=1e-3)


def test_santner_and_snells_interval_from_the_same_tails_has_its_reference_limits():
    # Source: the R package DBCI, 9/10 - 3/10: (.1268, .8853). The tables are ordered by the observed difference.
    difference = np.round(np.arange(11.0)[:, None] / 10 - np.arange(11.0) / 10, 10)
    is_above = (difference >= difference[9, 3]).astype(float)
    is_below = (difference <= difference[9, 3]).astype(float)
    grid = np.linspace(-1.0, 1.0, 2001)
    lower = next(d for d in grid if largest_tail(is_above, 10, 10, d) > 0.025)
    upper = next(d for d in grid[::-1] if largest_tail(is_below, 10, 10, d) > 0.025)
    assert (lower, upper) == pytest.approx((0.1268, 0.8853), abs=1e-3)
