"""Many arms: the screen nominates the guilty toggle, Holm's step-down by hand, and its error rate."""

import math

import numpy as np
import pytest

from service.stats.many_arms import (
    ToggleRuns,
    holm_adjusted,
    holm_claims,
    holm_levels,
    next_screen_choice,
    screen_plan,
)
from service.stats.order import OrderStep


def screen(seed, guilty, with_cause, without, stop=0.8):
    rng = np.random.default_rng(seed)
    plan, found = screen_plan(4, stop), []
    while True:
        choice = next_screen_choice(plan, found, rng, 200 - len(found))
        if choice.step is not OrderStep.RUN:
            return len(found), choice
        rate = without if guilty in choice.applied else with_cause
        found.append(ToggleRuns(frozenset(choice.applied), 1, int(rng.random() < rate)))


def test_a_screen_nominates_the_guilty_toggle_in_few_runs():
    ended = [screen(seed, seed % 4, 0.65, 0.1) for seed in range(80)]
    right = [choice.winner == seed % 4 for seed, (_, choice) in enumerate(ended)]
    # Facts 2.5: 9.6 runs to posterior .8, right .96.
    assert np.mean([runs for runs, _ in ended]) <= 13
    assert np.mean(right) >= 0.86


def test_equal_rates_under_all_toggles_nominate_nobody():
    steady = next_screen_choice(
        screen_plan(2), [ToggleRuns(frozenset(s), 400, 200) for s in ((), (0,), (1,), (0, 1))], np.random.default_rng(0)
    )
    assert steady.step is OrderStep.NO_CAUSE
    assert steady.winner is None


def test_a_toggle_that_cures_is_confirmed_and_unknown_toggles_are_refused():
    found = [ToggleRuns(frozenset(), 10, 8), ToggleRuns(frozenset({1}), 10, 0), ToggleRuns(frozenset({0, 2}), 10, 7)]
    choice = next_screen_choice(screen_plan(3), found, np.random.default_rng(0))
    assert (choice.step, choice.winner, choice.applied) == (OrderStep.CONFIRM, 1, ())
    assert choice.probability[1] > 0.95
    with pytest.raises(ValueError, match="outside"):
        next_screen_choice(screen_plan(3), [ToggleRuns(frozenset({7}), 1, 0)], np.random.default_rng(0))


def test_holm_adjusts_by_hand():
    # Holm 1979: sorted p times K, K-1, .., never falling.
    np.testing.assert_allclose(holm_adjusted([0.01, 0.04, 0.03]), [0.03, 0.06, 0.06])
    np.testing.assert_allclose(holm_adjusted([0.9, 0.8]), [1.0, 1.0])
    assert holm_adjusted([]).size == 0
    np.testing.assert_allclose(holm_levels(3, 0.06), (0.02, 0.03, 0.06))


def test_step_down_claims_an_arm_at_a_looser_level_only_after_another():
    alone = [[False, True, True], [False, False, False], [False, False, False]]
    assert holm_claims(alone).tolist() == [False, False, False]
    after = [[False, True, True], [True, True, True], [False, False, False]]
    assert holm_claims(after).tolist() == [True, True, False]


def test_step_down_on_p_values_is_holm():
    rng = np.random.default_rng(3)
    for _ in range(200):
        p = rng.beta(0.3, 1.0, 5)
        crossed = p[:, None] <= np.array(holm_levels(5, 0.05))
        assert holm_claims(crossed).tolist() == (holm_adjusted(p) <= 0.05).tolist()


WRONG = {
    "no arms": lambda: holm_levels(0, 0.05),
    "alpha": lambda: holm_levels(2, 1.0),
    "shape": lambda: holm_claims([[True, False]]),
    "p above one": lambda: holm_adjusted([1.5]),
}


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_wrong_requests_are_named(make):
    with pytest.raises(ValueError):
        make()


@pytest.mark.parametrize("p_values", [[math.nan, 0.01], [-0.1], [1.1], [[0.5]]])
def test_p_values_that_are_none_are_refused(p_values):
    with pytest.raises(ValueError, match="must be a list of numbers in"):
        holm_adjusted(p_values)
