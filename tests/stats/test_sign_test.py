"""The fallback from randomisation alone, and the position diagnostic."""

import itertools
import math

import numpy as np
import pytest

from service.stats.compare import boschloo
from service.stats.sequential import Claim, build_boundary
from service.stats.sign_test import (
    PairedBlock,
    SignStop,
    first_sign_stop,
    position_matters,
    position_p_value,
    sign_rejection,
)
from service.stats.spending import spent

CONTROL, TREATED = PairedBlock(True, False, True), PairedBlock(False, True, True)
BOTH, NEITHER = PairedBlock(True, True, True), PairedBlock(False, False, True)


def test_a_run_of_control_only_failures_rejects_when_its_chance_is_affordable():
    boundary = build_boundary(20, 0.025)
    # After n blocks, n failures of the control alone have probability 2^-n; the schedule allows it first at n = 7.
    affordable = next(n for n in range(1, 21) if 0.5**n <= spent(boundary.spending, 0.025, n / 20))
    assert sign_rejection(boundary, [True] * 20, [False] * 20) == affordable == 7
    assert sign_rejection(boundary, [False] * 20, [True] * 20) is None
    assert sign_rejection(boundary, [True] * 6, [False] * 6) is None


def test_concordant_blocks_only_move_the_schedule():
    boundary = build_boundary(20, 0.025)
    first = [False] * 5 + [True] * 15
    stop = sign_rejection(boundary, first, [False] * 20)
    affordable = next(n for n in range(6, 21) if 0.5 ** (n - 5) <= spent(boundary.spending, 0.025, n / 20))
    assert stop == affordable == 11


def test_blocks_beyond_the_most_are_ignored():
    boundary = build_boundary(6, 0.025)
    assert sign_rejection(boundary, [True] * 5 + [False] * 20, [False] * 5 + [False] * 20) is None
    assert sign_rejection(boundary, [False] * 6 + [True] * 20, [False] * 26) is None


@pytest.mark.parametrize("alpha", [0.025, 0.1, 0.4])
def test_the_error_is_at_most_alpha_for_every_pattern_of_discordant_blocks(alpha):
    boundary = build_boundary(10, alpha)
    largest = 0.0
    for pattern in ([True] * 10, [False] * 3 + [True] * 7, [True, False] * 5, [True] * 3 + [False] * 4 + [True] * 3):
        places = [place for place, is_discordant in enumerate(pattern) if is_discordant]
        rejected = 0
        for signs in itertools.product((True, False), repeat=len(places)):
            first = [False] * 10
            for place, sign in zip(places, signs, strict=True):
                first[place] = sign
            second = [is_discordant and not one for is_discordant, one in zip(pattern, first, strict=True)]
            rejected += sign_rejection(boundary, first, second) is not None
        largest = max(largest, rejected / 2 ** len(places))
        assert rejected / 2 ** len(places) <= alpha + 1e-12
    assert largest > 0.6 * alpha


def test_the_fallback_claims_both_directions_and_exoneration():
    boundary = build_boundary(30)
    implicated, worsened = first_sign_stop(boundary, [CONTROL] * 30), first_sign_stop(boundary, [TREATED] * 30)
    assert implicated == SignStop(sign_rejection(boundary, [True] * 30, [False] * 30), Claim.IMPLICATED)
    assert worsened == SignStop(implicated.n, Claim.WORSENED)
    exonerated = first_sign_stop(boundary, [BOTH] * 30)
    # Betting: mean over the stakes c of (1 + c)^n at ratio .5 first reaches 20 after 7 common failures.
    assert exonerated == SignStop(7, Claim.EXONERATED)
    stakes = np.array([0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97])
    assert np.mean((1 + stakes) ** 6) < 20 <= np.mean((1 + stakes) ** 7)
    assert first_sign_stop(boundary, [NEITHER] * 30) is None
    assert first_sign_stop(boundary, []) is None


def test_an_arm_that_never_fails_never_exonerates_by_betting():
    boundary = build_boundary(20)
    for blocks in itertools.product((TREATED, NEITHER), repeat=8):
        stop = first_sign_stop(boundary, blocks)
        assert stop is None or stop.claim is Claim.WORSENED


def test_the_position_diagnostic_compares_the_places_within_each_arm():
    # The second run always fails, whichever arm it is: each arm fails 5 of 5 times second and 0 of 5 times first.
    blocks = [PairedBlock(False, True, True), PairedBlock(True, False, False)] * 5
    assert position_p_value(blocks) == 2 * boschloo(0, 5, 5, 5)
    assert position_matters(blocks)
    only_control = [PairedBlock(False, False, True), PairedBlock(True, False, False)] * 5
    only_treated = [PairedBlock(False, False, False), PairedBlock(False, True, True)] * 5
    assert position_p_value(only_control) == position_p_value(only_treated) == 2 * boschloo(0, 5, 5, 5)
    first_fails = [PairedBlock(True, False, True), PairedBlock(False, True, False)] * 4
    assert position_p_value(first_fails) == 2 * boschloo(4, 4, 0, 4)


@pytest.mark.parametrize(
    ("first", "second", "matters"), [((1, 15), (7, 16), True), ((6, 7), (2, 8), False)], ids=["0.0496", "0.0504"]
)
def test_the_position_matters_below_five_percent(first, second, matters):
    places = [
        (k < failures, is_first) for (failures, n), is_first in ((first, True), (second, False)) for k in range(n)
    ]
    blocks = [PairedBlock(failed, False, is_first) for failed, is_first in places]
    assert position_p_value(blocks) == pytest.approx(0.05, abs=5e-4)
    assert position_matters(blocks) is matters


def test_a_treatment_in_an_uneven_order_is_no_effect_of_the_position():
    balanced = [PairedBlock(True, False, True), PairedBlock(True, False, False)] * 5
    assert position_p_value(balanced) == 1.0
    assert not position_matters(balanced)
    assert position_p_value([PairedBlock(True, False, False)] * 20) == 1.0
    assert position_p_value([]) == 1.0


def test_the_fallback_costs_about_a_third_more():
    # facts 2.1 (simulated 20k, alpha .025, power .9): .65/.1 takes 25.0 executions in 19 blocks; 4 standard errors here.
    rng = np.random.default_rng(20261130)
    boundary = build_boundary(19, 0.025)
    lengths, powers = [], []
    for _ in range(3000):
        first, second = rng.random(19) < 0.65, rng.random(19) < 0.1
        stop = sign_rejection(boundary, first.tolist(), second.tolist())
        lengths.append(2 * (stop or 19))
        powers.append(stop is not None)
    assert abs(np.mean(lengths) - 25.0) <= 4 * np.std(lengths) / math.sqrt(3000)
    assert 0.87 < np.mean(powers) < 0.95


def test_a_tiny_alpha_is_not_overspent_by_rounding():
    # Forty heads in a row have probability 2^-40 = 9.1e-13, far more than alpha.
    failed = [True] * 40
    assert sign_rejection(build_boundary(40, 1e-14), failed, [not one for one in failed]) is None
