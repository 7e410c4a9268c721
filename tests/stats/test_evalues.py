"""E-values by hand and against printed numbers; multiple claims; extensions and pooling."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.stats.evalues import (
    PairedCounts,
    betting_interval,
    e_bh,
    e_holm,
    log_e_control_worse,
    log_e_rate_above,
    log_e_rate_below,
    log_e_ratio,
    mixture_interval,
)
from service.stats.extension import Evidence, blocks_to_decide, judge
from service.stats.mixture import Prior, ratio_mixture
from service.stats.sequential import Claim, Counts, build_boundary

steady = settings(deadline=None, derandomize=True, max_examples=80)
STAKES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
SHIPPED = build_boundary()
pairs = st.builds(PairedCounts, *[st.integers(0, 15)] * 4)


# facts 2.3 (exact).
def test_betting_reproduces_the_reference():
    for log_e, e in (
        (log_e_control_worse(PairedCounts(12, 1, 3, 4)), 88.1),
        (log_e_control_worse(PairedCounts(11, 0, 0, 9)), 383.4),
        (log_e_ratio(PairedCounts(0, 0, 13, 7), 0.5), 1343.6),
        (log_e_rate_below(0, 6, 0.43), 9.88),
        (log_e_rate_below(0, 10, 0.43), 63.5),
        (log_e_rate_below(0, 5, 0.65), 51.9),
    ):
        assert math.exp(log_e) == pytest.approx(e, abs=0.051)


@steady
@given(pairs, st.sampled_from([-0.3, 0.0, 0.2]), st.sampled_from([0.25, 0.5, 1.0]))
def test_betting_is_the_mean_over_the_stakes_of_the_wealth(counts, difference, ratio):
    u, v, both, neither = counts.control_only, counts.treated_only, counts.both, counts.neither
    wealth = np.mean([
        (1 + c * (1 - difference)) ** u * (1 - c * difference) ** (both + neither) * (1 - c * (1 + difference)) ** v
        for c in np.array(STAKES) / (1 + difference)
    ])  # fmt: skip
    assert math.exp(log_e_control_worse(counts, difference)) == pytest.approx(wealth)
    wealth = np.mean([
        (1 - c * ratio) ** u * (1 + c) ** v * (1 + c * (1 - ratio)) ** both for c in np.array(STAKES) / ratio
    ])  # fmt: skip
    assert math.exp(log_e_ratio(counts, ratio)) == pytest.approx(wealth)


@steady
@given(st.integers(0, 20), st.integers(0, 20), st.sampled_from([0.05, 0.43, 0.9]))
def test_betting_on_one_rate_is_the_mean_wealth(failures, clean, rate):
    above = np.mean([(1 + c * (1 - rate)) ** failures * (1 - c * rate) ** clean for c in np.array(STAKES) / rate])
    below = np.mean([
        (1 - c * (1 - rate)) ** failures * (1 + c * rate) ** clean for c in np.array(STAKES) / (1 - rate)
    ])  # fmt: skip
    assert math.exp(log_e_rate_above(failures, failures + clean, rate)) == pytest.approx(above)
    assert math.exp(log_e_rate_below(failures, failures + clean, rate)) == pytest.approx(below)


# facts 1.3, 2.3 (exact on its grids).
def test_anytime_intervals_reproduce_the_reference():
    assert betting_interval(PairedCounts(12, 1, 1, 6)) == pytest.approx((0.055, 0.865))
    assert betting_interval(PairedCounts(11, 0, 0, 9)) == pytest.approx((0.14, 0.845))
    assert mixture_interval(13, 2, 20) == pytest.approx((0.07, 0.87))
    assert mixture_interval(13, 13, 20) == pytest.approx((-0.48, 0.48))
    assert mixture_interval(0, 0, 20) == pytest.approx((-0.27, 0.27))


def test_anytime_intervals_mirror_widen_and_start_open():
    assert betting_interval(PairedCounts(1, 12, 1, 6)) == pytest.approx((-0.865, -0.055))
    assert mixture_interval(2, 13, 20) == pytest.approx((-0.87, -0.07))
    wider = mixture_interval(13, 2, 20, 0.99)
    assert wider[0] < 0.07
    assert wider[1] > 0.87
    assert betting_interval(PairedCounts(0, 0, 0, 0)) == mixture_interval(0, 0, 0) == (-1.0, 1.0)
    # 1 + mean(stakes) (1 - d) / (1 + d) reaches 40 below d = -0.9745: the first grid point above is accepted.
    assert betting_interval(PairedCounts(1, 0, 0, 0)) == pytest.approx((-0.97, 1.0))


def test_e_holm_and_e_bh_by_hand():
    # K = 4, alpha .05: Holm needs 80, 60, 40, 20 in order; e-BH needs 4 / (.05 k) = 80, 40, 26.7, 20.
    log_e = np.log([90, 3, 50, 26])
    assert e_holm(log_e, 0.05).tolist() == [True, False, False, False]
    assert e_bh(log_e, 0.05).tolist() == [True, False, True, False]
    assert e_bh(np.log([90, 3, 30, 27]), 0.05).tolist() == [True, False, True, True]
    assert e_holm(np.log([90, 61, 41, 21]), 0.05).tolist() == [True] * 4
    assert e_holm(np.log([79, 79, 79, 79]), 0.05).tolist() == [False] * 4
    assert e_holm(np.log([21, 90]), 0.05).tolist() == [True, True]


def test_no_hypotheses_no_rejections():
    assert e_holm([], 0.05).tolist() == e_bh([], 0.05).tolist() == []
    assert e_bh([0.0, 0.0], 0.05).tolist() == [False, False]


@steady
@given(st.lists(st.floats(-5, 12), min_size=1, max_size=12))
def test_e_bh_rejects_at_least_what_e_holm_rejects(log_e):
    holm, bh = e_holm(log_e, 0.05), e_bh(log_e, 0.05)
    assert np.all(bh >= holm)
    for rejected in (holm, bh):
        if rejected.any() and not rejected.all():
            assert np.array(log_e)[rejected].min() > np.array(log_e)[~rejected].max()


def test_the_other_arm_first_is_the_mirror():
    counts = PairedCounts(3, 5, 7, 9)
    assert counts.exchanged() == PairedCounts(5, 3, 7, 9)
    assert counts.concordant == 16


def test_impossible_values_are_refused_by_name():
    one_each = PairedCounts(1, 1, 1, 1)
    for call, arguments, value in (
        (PairedCounts, (-1, 0, 0, 0), "-1"),
        (log_e_control_worse, (one_each, 1.0), "1.0"),
        (log_e_control_worse, (one_each, -1.0), "-1.0"),
        (log_e_ratio, (one_each, 0.0), "0.0"),
        (log_e_ratio, (one_each, 1.5), "1.5"),
        (log_e_rate_above, (3, 2, 0.5), "3/2"),
        (log_e_rate_below, (1, 2, 1.0), "1.0"),
        (log_e_rate_above, (1, 2, 0.0), "0.0"),
    ):
        with pytest.raises(ValueError, match=value):
            call(*arguments)


def test_an_extension_is_judged_by_the_e_value_at_one_over_alpha():
    evidence = judge(SHIPPED, Counts(30, 13, 0, 1, 0))
    assert evidence.log_e_implicated == pytest.approx(float(ratio_mixture(Prior.CURE, 1.0).log_e(30, 13, 1)))
    assert evidence.claim is Claim.IMPLICATED
    assert judge(SHIPPED, Counts(30, 1, 0, 13, 0)).claim is Claim.WORSENED
    assert judge(SHIPPED, Counts(30, 20, 0, 20, 0)).claim is Claim.EXONERATED
    assert judge(SHIPPED, Counts(30, 10, 0, 5, 0)).claim is None
    for n, a, b in ((40, 9, 1), (40, 9, 2), (40, 12, 3), (60, 20, 8)):
        implied = float(ratio_mixture(Prior.CURE, 1.0).log_e(n, a, b)) >= math.log(40)
        assert (judge(SHIPPED, Counts(n, a, 0, b, 0)).claim is Claim.IMPLICATED) == implied
    stricter = build_boundary(30, 0.025 / 8)
    assert judge(SHIPPED, Counts(20, 12, 0, 2, 0)).claim is Claim.IMPLICATED
    assert judge(stricter, Counts(20, 12, 0, 2, 0)).claim is None


def test_pooling_is_adding_counts():
    parts = [Counts(12, 5, 1, 1, 0), Counts(20, 9, 0, 1, 0), Counts(8, 3, 0, 0, 1)]
    assert judge(SHIPPED, parts[0] + parts[1] + parts[2]) == judge(SHIPPED, Counts(40, 17, 1, 2, 1))
    assert [judge(SHIPPED, part).claim for part in parts] == [None] * 3
    assert judge(SHIPPED, Counts(40, 17, 1, 2, 1)).claim is Claim.IMPLICATED


def test_other_outcomes_count_against_an_extension_too():
    assert judge(SHIPPED, Counts(30, 13, 0, 1, 12)).claim is None
    assert judge(SHIPPED, Counts(30, 1, 12, 13, 0)).claim is None
    assert judge(SHIPPED, Counts(30, 20, 0, 10, 10)).claim is None
    assert judge(SHIPPED, Counts(30, 10, 10, 20, 0)).claim is None


def test_nothing_run_is_no_evidence():
    assert judge(SHIPPED, Counts()) == Evidence(0.0, 0.0, 0.0, 0.0, None)
    assert blocks_to_decide(SHIPPED, Counts()) is None


@pytest.mark.parametrize(
    "counts", [Counts(30, 6, 0, 2, 0), Counts(30, 10, 0, 10, 0), Counts(8, 2, 0, 0, 0), Counts(30, 2, 0, 6, 0)]
)
def test_the_blocks_that_would_decide_are_the_fewest(counts):
    more = blocks_to_decide(SHIPPED, counts)
    assert more > 0

    def grown(n):
        implied = []
        for mixture, needed, first, second in (
            (ratio_mixture(Prior.CURE, 1.0), 40, counts.a_match, counts.b_match),
            (ratio_mixture(Prior.CURE, 1.0), 40, counts.b_match, counts.a_match),
        ):
            implied.append(mixture.log_e(n, first * n / counts.n, second * n / counts.n) >= math.log(needed))
        near = ratio_mixture(Prior.SAME, 0.5)
        both = [
            near.log_e(n, x * n / counts.n, y * n / counts.n) >= math.log(20)
            for x, y in ((counts.a_match, counts.b_match), (counts.b_match, counts.a_match))
        ]
        return any(implied) or all(both)

    assert grown(counts.n + more)
    assert not grown(counts.n + more - 1)


def test_blocks_to_decide_at_the_ends():
    assert blocks_to_decide(SHIPPED, Counts(30, 13, 0, 1, 0)) == 0
    assert blocks_to_decide(SHIPPED, Counts(20, 0, 0, 0, 0)) is None
