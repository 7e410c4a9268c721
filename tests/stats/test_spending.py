"""The spending region: printed boundaries, enumeration of all paths, and the error bound."""

import itertools
import math

import numpy as np
import pytest

from service.stats.mixture import Prior
from service.stats.spending import Region, Spending, add_block, build_region, path_weights, spent, sup_probability
from tests.stats.reference_boundary import PRINTED, build, expected_executions, probability

RATES_60 = (1 - np.cos(np.pi * np.arange(1, 61) / 61)) / 2
DESIGNS = [(1.0, Prior.FIFTY_FIFTY), (1.0, Prior.CURE), (0.5, Prior.SAME)]


@pytest.mark.parametrize("design", PRINTED)
def test_the_printed_boundaries_are_reproduced(design):
    rows, _ = build(*design)
    for n, printed in PRINTED[design].items():
        assert rows[n - 1][:4] == printed, n


# facts 2.1 (exact, alpha .05): executions and most blocks at power .9.
@pytest.mark.parametrize(
    ("prior", "spending", "rates", "blocks", "executions"),
    [
        (Prior.FIFTY_FIFTY, Spending.POCOCK, (0.65, 0.1), 14, 15.3),
        (Prior.FIFTY_FIFTY, Spending.POCOCK, (0.2, 0.0), 32, 39.5),
        (Prior.FIFTY_FIFTY, Spending.POCOCK, (0.5, 0.0), 11, 14.4),
        (Prior.FIFTY_FIFTY, Spending.POCOCK, (0.3, 0.05), 47, 48.4),
        (Prior.CURE, Spending.POCOCK, (0.65, 0.1), 16, 17.1),
        (Prior.CURE, Spending.POCOCK, (0.2, 0.0), 32, 39.1),
    ],
)
def test_executions_at_power_nine_tenths(prior, spending, rates, blocks, executions):
    rows, crossed = build(blocks, 0.05, prior=prior, spending=spending)
    assert probability(crossed, *rates) >= 0.9
    assert probability(build(blocks - 1, 0.05, prior=prior, spending=spending)[1], *rates) < 0.9
    assert expected_executions(rows, *rates) == pytest.approx(executions, abs=0.051)


# facts 2.1, prior "cure .5": executions at power .9 with t^1.5 and O'Brien-Fleming spending.
@pytest.mark.parametrize(
    ("spending", "rates", "executions"),
    [
        (Spending.POWER, (0.65, 0.1), 16.7),
        (Spending.OBRIEN_FLEMING, (0.65, 0.1), 18.9),
        (Spending.POWER, (0.5, 0.0), 14.1),
        (Spending.OBRIEN_FLEMING, (0.5, 0.0), 14.7),
    ],
)
def test_executions_with_later_spending(spending, rates, executions):
    for blocks in range(5, 40):
        rows, crossed = build(blocks, 0.05, prior=Prior.CURE, spending=spending)
        if probability(crossed, *rates) >= 0.9:
            assert expected_executions(rows, *rates) == pytest.approx(executions, abs=0.051)
            return
    pytest.fail("power 0.9 was not reached")


# facts 2.3 (exact, before futility): P(implicate), executions.
@pytest.mark.parametrize(
    ("design", "rates", "power", "executions"),
    [
        ((16, 0.05), (0.65, 0.1), 0.932, 16.5),
        ((16, 0.05), (0.2, 0.0), 0.402, 28.8),
        ((20, 0.025), (0.65, 0.1), 0.938, 20.1),
        ((20, 0.025), (0.2, 0.0), 0.589, 36.2),
        ((20, 0.025), (0.05, 0.05), 0.006, 40.0),
        ((40, 0.025), (0.65, 0.1), 0.999, 23.8),
        ((40, 0.025), (0.3, 0.05), 0.767, 51.5),
        ((40, 0.025), (0.05, 0.05), 0.010, 79.8),
    ],
)
def test_power_and_executions_of_the_printed_boundaries(design, rates, power, executions):
    rows, crossed = build(*design)
    assert probability(crossed, *rates) == pytest.approx(power, abs=6e-4)
    assert expected_executions(rows, *rates) == pytest.approx(executions, abs=0.051)


def test_a_boundary_on_26_rates_overshoots_between_them_and_the_shipped_one_does_not():
    # facts 2.3: sup .02509 and .05004 at 40 blocks on 26 rates; .0244, .02497, .04986 on 60.
    assert sup_probability(build(40, 0.025)[1], 1.0) == pytest.approx(0.02509, abs=1e-5)
    assert sup_probability(build(40, 0.05)[1], 1.0) == pytest.approx(0.05004, abs=1e-5)
    for (blocks, alpha), sup in {(20, 0.025): 0.0244, (40, 0.025): 0.02497, (40, 0.05): 0.04986}.items():
        region = build_region(blocks, alpha, 1.0, Prior.FIFTY_FIFTY, Spending.POCOCK)
        assert region.sup_error == pytest.approx(sup, abs=5e-5)
        assert region.sup_error <= alpha


def test_a_build_that_overshoots_is_repeated_tighter(monkeypatch):
    monkeypatch.setattr("service.stats.spending.BUILD_POINTS", 3)
    region = build_region.__wrapped__(12, 0.05, 1.0, Prior.FIFTY_FIFTY, Spending.POCOCK)
    loose, crossed = build(12, 0.05, rates=(1 - np.cos(np.pi * np.arange(1, 4) / 4)) / 2)
    assert sup_probability(crossed, 1.0) > 0.05
    assert 0.04 < region.sup_error <= 0.05
    assert region.least != loose


def test_the_error_bound_holds_at_every_rate_and_is_tight():
    crossed = build(12, 0.05)[1]
    bound = sup_probability(crossed, 1.0)
    reached = max(probability(crossed, p, p) for p in np.linspace(0.0, 1.0, 2001))
    assert reached <= bound <= reached * 1.0005
    near = build(12, 0.05, prior=Prior.SAME, ratio=0.5)[1]
    reached = max(probability(near, p / 2, p) for p in np.linspace(0.0, 1.0, 2001))
    assert reached <= sup_probability(near, 0.5) <= reached * 1.0005


@pytest.mark.parametrize(("ratio", "prior"), DESIGNS)
def test_the_crossed_paths_are_those_that_enter_the_region(ratio, prior):
    region = build_region(6, 0.1, ratio, prior, Spending.POCOCK)
    outcomes = list(itertools.product((0, 1), repeat=2))
    for p_high, p_low in ((0.6, 0.2), (0.4, 0.8), (1.0, 0.9)):
        total = 0.0
        for path in itertools.product(outcomes, repeat=6):
            sums = itertools.accumulate(path, lambda left, right: (left[0] + right[0], left[1] + right[1]))
            if any(region.rejects(n, *state) for n, state in enumerate(sums, start=1)):
                total += math.prod(
                    (p_high if high else 1 - p_high) * (p_low if low else 1 - p_low) for high, low in path
                )
        crossed = build(6, 0.1, prior=prior, ratio=ratio, rates=RATES_60)[1]
        assert probability(crossed, p_high, p_low) == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize(("ratio", "prior"), DESIGNS)
def test_a_region_is_closed_under_stronger_evidence(ratio, prior):
    region = build_region(30, 0.025, ratio, prior, Spending.POCOCK)
    for n in range(1, 31):
        mask = region.mask(n)
        assert mask.shape == (n + 1, n + 1)
        assert np.all(mask[1:] >= mask[:-1])
        assert np.all(mask[:, 1:] <= mask[:, :-1])
        expected = [[region.rejects(n, high, low) for low in range(n + 1)] for high in range(n + 1)]
        assert mask.tolist() == expected


def test_no_error_is_spent_before_four_blocks_and_the_first_rejection_is_four_of_four():
    region = build_region(30, 0.025, 1.0, Prior.FIFTY_FIFTY, Spending.POCOCK)
    assert region.least[:4] == ((), (), (), (4,))
    assert region.rejects(4, 4, 0)
    assert not region.rejects(4, 4, 1)
    assert not region.rejects(4, 3, 0)


@pytest.mark.parametrize("spending", list(Spending))
def test_a_schedule_rises_from_nothing_to_alpha(spending):
    shares = [spent(spending, 0.05, share) for share in np.linspace(0.001, 1.0, 50)]
    assert shares == sorted(shares)
    assert shares[0] < 0.001
    assert shares[-1] == pytest.approx(0.05)


def test_schedules_by_hand():
    assert spent(Spending.POCOCK, 0.05, 0.5) == pytest.approx(0.05 * math.log(1 + (math.e - 1) / 2))
    assert spent(Spending.POWER, 0.05, 0.25) == pytest.approx(0.05 / 8)
    # z = 1.959964 / sqrt(0.25): two-sided tail at 3.919928.
    assert spent(Spending.OBRIEN_FLEMING, 0.05, 0.25) == pytest.approx(math.erfc(3.919928 / math.sqrt(2)), rel=1e-5)


def test_path_counts_and_probabilities_agree():
    counts, law = np.ones((1, 1)), np.ones((1, 1))
    for _ in range(5):
        counts, law = add_block(counts), add_block(law, 0.3, 0.8)
    k = np.arange(6)
    choose = np.array([math.comb(5, int(i)) for i in k])
    assert counts == pytest.approx(np.outer(choose, choose))
    assert law.sum() == pytest.approx(1.0)
    assert law == pytest.approx(
        counts * path_weights(5, np.array([0.3]))[0][:, None] * path_weights(5, np.array([0.8]))[0][None, :]
    )


@pytest.mark.parametrize("blocks", [0, 101, -3])
def test_blocks_out_of_range_are_refused_by_value(blocks):
    with pytest.raises(ValueError, match=str(blocks)):
        build_region(blocks, 0.025, 1.0, Prior.FIFTY_FIFTY, Spending.POCOCK)


def test_a_single_block_can_reject_at_a_generous_level():
    region = build_region(1, 0.3, 1.0, Prior.FIFTY_FIFTY, Spending.POCOCK)
    # P(1 against 0) = p (1 - p) is at most 1/4.
    assert region.least == ((1,),)
    assert region.sup_error == pytest.approx(0.25, rel=1e-3)


def test_many_treated_arms_leave_a_small_alpha_each():
    region = build_region(16, 0.025 / 8, 1.0, Prior.FIFTY_FIFTY, Spending.POCOCK)
    assert 0.5 * 0.025 / 8 < region.sup_error <= 0.025 / 8
    assert build_region(16, 0.995, 1.0, Prior.FIFTY_FIFTY, Spending.POCOCK).sup_error <= 0.995


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1])
def test_an_alpha_out_of_range_is_refused_by_value(alpha):
    with pytest.raises(ValueError, match=str(alpha)):
        build_region(10, alpha, 1.0, Prior.FIFTY_FIFTY, Spending.POCOCK)


@pytest.mark.parametrize(
    ("n", "high", "low"), [(0, 0, 0), (3, 1, 1), (2, 3, 0), (2, 0, 3), (2, -1, 0), (2, 0, -1), (-1, 0, 0)]
)
def test_states_outside_the_boundary_are_refused(n, high, low):
    region = Region(2, 0.5, 1.0, ((1,), (1,)), 0.5)
    with pytest.raises(ValueError):
        region.rejects(n, high, low)
    assert region.rejects(2, 2, 0)
    assert not region.rejects(2, 0, 2)


@pytest.mark.parametrize("alpha", [1e-12, 1e-200])
def test_a_tiny_alpha_is_kept_and_not_overspent_by_rounding(alpha):
    assert build_region(30, alpha, 1.0, Prior.FIFTY_FIFTY, Spending.POCOCK).sup_error <= alpha
