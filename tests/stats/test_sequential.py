"""The decision of an A/B: claims and their order, imputation of other outcomes, storage, early ends."""

import itertools
import json

import pytest

from service.stats.futility import decision_probability, futile_mask, is_futile
from service.stats.mixture import Prior
from service.stats.sequential import (
    Boundary,
    Claim,
    Counts,
    Stop,
    boundary_from_json,
    build_boundary,
    early_not_reproduced_blocks,
    first_stop,
    walk,
)
from service.stats.spending import Region, Spending, build_region

SHIPPED = build_boundary()
BOTH, CONTROL, TREATED, NEITHER = Counts(1, 1, 0, 1, 0), Counts(1, 1), Counts(1, 0, 0, 1, 0), Counts(1)


def test_the_shipped_design():
    assert (SHIPPED.blocks, SHIPPED.alpha, SHIPPED.alpha_exonerate, SHIPPED.margin) == (30, 0.025, 0.05, 0.5)
    assert (SHIPPED.prior, SHIPPED.spending) == (Prior.FIFTY_FIFTY, Spending.POCOCK)
    assert SHIPPED.more == build_region(30, 0.025, 1.0, Prior.FIFTY_FIFTY, Spending.POCOCK)
    assert SHIPPED.near == build_region(30, 0.05, 0.5, Prior.SAME, Spending.POCOCK)


def test_four_of_four_against_none_implicates_and_mirrors():
    assert SHIPPED.implicated(4, 4, 0)
    assert SHIPPED.worsened(4, 0, 4)
    assert not SHIPPED.implicated(4, 0, 4)
    assert not SHIPPED.worsened(4, 4, 0)
    assert not SHIPPED.implicated(4, 3, 0)


def test_exoneration_needs_both_nulls_rejected():
    # 12 of 12 in both arms: neither "explains half" nor "doubles" is tenable.
    assert SHIPPED.exonerated(12, 12, 12)
    # A control at 2 of 12 and a treated arm at 12 of 12 rejects only "it explains half of the failures".
    assert SHIPPED.rejects_explains(12, 2, 12)
    assert not SHIPPED.rejects_multiplies(12, 2, 12)
    assert not SHIPPED.exonerated(12, 2, 12)
    assert SHIPPED.rejects_multiplies(12, 12, 2)
    assert not SHIPPED.rejects_explains(12, 12, 2)
    assert not SHIPPED.exonerated(12, 12, 2)
    for n, a, b in ((12, 2, 12), (12, 12, 2), (20, 9, 10)):
        assert SHIPPED.rejects_explains(n, a, b) == SHIPPED.rejects_multiplies(n, b, a)


@pytest.mark.parametrize("alpha", [0.025, 0.025 / 3])
def test_a_boundary_survives_json(alpha):
    boundary = build_boundary(16, alpha, margin=0.7, prior=Prior.CURE, spending=Spending.POWER)
    restored = boundary_from_json(json.loads(json.dumps(boundary.to_json())))
    assert restored == boundary
    assert hash(restored) == hash(boundary)


def test_another_format_is_refused():
    with pytest.raises(ValueError, match="format 2"):
        boundary_from_json({**SHIPPED.to_json(), "format": 2})


def test_small_margins_and_rare_histories_are_served():
    assert build_boundary(5, margin=0.005).near.ratio == 0.995
    # One failure in 1,000 runs: p_low = 5.1e-5, ln .05 / ln(1 - p_low) = 58,404.
    assert early_not_reproduced_blocks(1, 1000) == pytest.approx(58_404, abs=1)


@pytest.mark.parametrize("margin", [0.0, 1.0, -0.5, 2.0])
def test_a_margin_out_of_range_is_refused(margin):
    with pytest.raises(ValueError, match=f"margin {margin}"):
        build_boundary(10, margin=margin)


def test_counts_add_up_by_arm_and_kind():
    assert Counts(1, 2, 3, 4, 5) + Counts(10, 20, 30, 40, 50) == Counts(11, 22, 33, 44, 55)


def test_other_outcomes_count_against_each_claim():
    counts = Counts(20, 7, 2, 3, 5)
    assert counts.against_control_worse() == (7, 8)
    assert counts.against_treated_worse() == (9, 3)


@pytest.mark.parametrize(
    ("blocks", "n", "claim"),
    [
        ([CONTROL] * 9, 4, Claim.IMPLICATED),
        ([TREATED] * 9, 4, Claim.WORSENED),
        ([BOTH] * 30, 7, Claim.EXONERATED),
        ([NEITHER] * 30, 10, Claim.FUTILE),
        ([BOTH] * 2 + [CONTROL] * 28, 7, Claim.IMPLICATED),
    ],
)
def test_the_first_stop_of_plain_paths(blocks, n, claim):
    total = Counts()
    for block in blocks[:n]:
        total += block
    assert first_stop(SHIPPED, blocks) == Stop(n, claim, total)
    assert first_stop(SHIPPED, blocks[: n - 1]) is None


def test_a_path_may_run_to_the_end_without_a_stop():
    blocks = [BOTH, NEITHER, NEITHER] * 10
    assert first_stop(SHIPPED, blocks, stops_for_futility=False) is None
    assert first_stop(SHIPPED, [NEITHER] * 60, stops_for_futility=False) is None


def test_blocks_beyond_the_most_do_not_count():
    boundary = build_boundary(5)
    assert len(list(walk(boundary, [NEITHER] * 9))) == 5
    assert first_stop(boundary, [NEITHER] * 5 + [CONTROL] * 9, stops_for_futility=False) is None


def test_a_treatment_that_breaks_the_test_in_another_way_is_not_implicated():
    # Control fails with the signature, the treated arm crashes otherwise: imputed as a match, no claim.
    blocks = [Counts(1, 1, 0, 0, 1)] * 30
    stop = first_stop(SHIPPED, blocks, stops_for_futility=False)
    assert stop is None or stop.claim is not Claim.IMPLICATED
    # Against "treated fails more" the crash counts as clean, so it cannot be called worse with this signature either.
    assert stop is None


def test_control_crashes_do_not_make_the_treatment_worse_or_exonerated():
    blocks = [Counts(1, 0, 1, 1, 0)] * 30
    assert first_stop(SHIPPED, blocks, stops_for_futility=False) is None


def test_each_block_is_looked_at_alone():
    with pytest.raises(ValueError, match="2 blocks in one element"):
        first_stop(SHIPPED, [Counts(2, 2, 0, 0, 0)])


def test_the_nulls_of_an_exoneration_may_fall_at_different_looks():
    near = Region(3, 0.05, 0.5, ((1,), (), ()), 0.05)
    never = Region(3, 0.05, 1.0, ((), (), ()), 0.0)
    boundary = Boundary(3, 0.025, 0.05, 0.5, Prior.CURE, Spending.POCOCK, never, near)
    looks = list(walk(boundary, [TREATED, NEITHER, NEITHER]))
    assert [look.has_rejected_explains for look in looks] == [True, True, True]
    assert [look.has_rejected_multiplies for look in looks] == [False, False, False]
    assert [look.claim for look in looks] == [None, None, None]
    second = Region(3, 0.05, 0.5, ((1,), (2,), (2, 3)), 0.05)
    both = Boundary(3, 0.025, 0.05, 0.5, Prior.CURE, Spending.POCOCK, never, second)
    claims = [look.claim for look in walk(both, [TREATED, CONTROL, CONTROL])]
    assert claims == [None, None, None]
    mixed = Region(3, 0.05, 0.5, ((1,), (9, 2), ()), 0.05)
    later = Boundary(3, 0.025, 0.05, 0.5, Prior.CURE, Spending.POCOCK, never, mixed)
    # Block 1 rejects "explains" with (a, b) = (0, 1); block 2 at (2, 1) rejects "multiplies".
    looks = list(walk(later, [TREATED, Counts(1, 2, 0, 0, 0), NEITHER]))
    assert [look.claim for look in looks] == [None, Claim.EXONERATED, Claim.EXONERATED]


def test_implicated_comes_before_worsened_and_exonerated():
    everything = Region(1, 0.05, 0.5, ((0, 0),), 0.05)
    boundary = Boundary(1, 0.025, 0.05, 0.5, Prior.CURE, Spending.POCOCK, everything, everything)
    assert first_stop(boundary, [BOTH]).claim is Claim.IMPLICATED
    worse = Region(1, 0.05, 0.5, ((1,),), 0.05)
    boundary = Boundary(1, 0.025, 0.05, 0.5, Prior.CURE, Spending.POCOCK, worse, everything)
    assert first_stop(boundary, [TREATED]).claim is Claim.WORSENED


def test_history_sets_the_early_end():
    # facts 2.4: 13/20 -> 6, 4/20 -> 41, 2/20 -> 165 blocks.
    assert [early_not_reproduced_blocks(k, 20) for k in (13, 4, 2)] == [6, 41, 165]
    assert early_not_reproduced_blocks(0, 20) is None
    assert early_not_reproduced_blocks(0, 0) is None


def test_futility_is_one_minus_nothing_at_a_claim_and_zero_past_hope():
    assert decision_probability(SHIPPED, 4, 4, 0) == 1.0
    assert decision_probability(SHIPPED, 29, 3, 3) == decision_probability(SHIPPED, 30, 3, 3) == 0.0
    assert is_futile(SHIPPED, 29, 3, 3)
    assert not is_futile(SHIPPED, 30, 3, 3)
    assert not is_futile(SHIPPED, 6, 5, 5)


def test_futility_equals_the_enumeration_of_all_futures():
    boundary = build_boundary(6, 0.1, 0.1)
    for n, a, b in ((3, 2, 0), (4, 3, 3), (5, 4, 1), (2, 0, 0), (6, 5, 1), (1, 1, 0)):
        assert decision_probability(boundary, n, a, b) == pytest.approx(enumerate_futures(boundary, n, a, b))


def enumerate_futures(boundary, n, a, b):
    if boundary.implicated(n, a, b) or boundary.worsened(n, a, b) or boundary.exonerated(n, a, b):
        return 1.0
    if n == boundary.blocks:
        return 0.0
    p, q = (a + 0.5) / (n + 1), (b + 0.5) / (n + 1)
    return sum(
        (p if x else 1 - p) * (q if y else 1 - q) * enumerate_futures(boundary, n + 1, a + x, b + y)
        for x, y in itertools.product((0, 1), repeat=2)
    )


def test_futility_waits_for_six_blocks_and_for_a_probability_below_a_twentieth():
    boundary = build_boundary(10)
    assert decision_probability(boundary, 5, 0, 0) < 0.05
    assert not is_futile(boundary, 5, 0, 0)
    assert is_futile(boundary, 6, 0, 0)
    # Predictive probabilities just below and just above the limit: .0499, .0499, .0505, .0505.
    assert [is_futile(SHIPPED, *state) for state in ((10, 0, 0), (16, 3, 5), (22, 3, 7), (28, 1, 6))] == [
        True,
        True,
        False,
        False,
    ]
    for n in range(1, 11):
        mask = futile_mask(boundary, n)
        states = list(itertools.product(range(n + 1), repeat=2))
        assert [bool(mask[state]) for state in states] == [is_futile(boundary, n, *state) for state in states]


@pytest.mark.parametrize(("n", "a", "b"), [(0, 0, 0), (31, 1, 1), (5, 6, 0), (5, 0, 6), (5, -1, 0), (5, 0, -1)])
def test_futility_refuses_counts_outside_the_boundary(n, a, b):
    with pytest.raises(ValueError, match="outside"):
        decision_probability(SHIPPED, n, a, b)
