"""Alerts over many tests: exact validity of the conditional e-value, e-BH on a mixed suite, outages, permutations."""

import numpy as np
import pytest

from service.stats.alerts import (
    alerts,
    collapse_to_commits,
    conditional_log_e,
    log_correction,
    permutation_p_value,
    usable_runs,
)
from service.stats.changepoint import histories


def test_the_e_value_has_expectation_one_given_the_failures_by_enumeration():
    bits = (np.arange(2**10)[:, None] >> np.arange(10)) & 1
    e = np.exp(conditional_log_e(histories(bits)))
    np.testing.assert_allclose([e[bits.sum(1) == k].mean() for k in range(11)], 1.0, atol=1e-9)


def test_units_of_several_runs_keep_the_expectation():
    runs = [2, 1, 0, 3, 2]
    bits = (np.arange(2**8)[:, None] >> np.arange(8)) & 1
    fails = np.stack([bits[:, :2].sum(1), bits[:, 2], 0 * bits[:, 0], bits[:, 3:6].sum(1), bits[:, 6:].sum(1)], 1)
    e = np.exp(conditional_log_e(histories(fails, runs)))
    np.testing.assert_allclose([e[bits.sum(1) == k].mean() for k in range(9)], 1.0, atol=1e-9)


def test_the_correction_is_the_tabulated_one():
    # Statistics facts 4: ln P0(k) / P1(k) at N = 300.
    got = log_correction(range(1, 301))[[1, 3, 10, 50, 150]]
    np.testing.assert_allclose(got, (0.79, 0.45, 0.07, -0.39, -0.49), atol=5.1e-3)


def mixed_suite(rng, n_tests=2000, n_changed=60, n_runs=300):
    rate = np.where(rng.random(n_tests) < 0.8, 0, rng.beta(0.3, 3, n_tests))
    fails = rng.random((n_tests, n_runs)) < rate[:, None]
    changed = rng.choice(n_tests, n_changed, replace=False)
    for test in changed:
        at, (old, new) = rng.integers(30, 270), [(0, 0.2), (0, 0.65), (0.1, 0.65), (0.05, 0.3)][rng.integers(4)]
        fails[test] = rng.random(n_runs) < np.where(np.arange(n_runs) < at, old, new)
    return fails, set(changed.tolist())


def test_alerts_find_most_changes_and_hardly_anything_else():
    fails, changed = mixed_suite(np.random.default_rng(7))
    found = alerts(histories(fails))
    names = {alert.test for alert in found}
    assert len(names & changed) >= 0.75 * len(changed)
    assert len(names - changed) <= 2
    assert [a.log_e for a in found] == sorted((a.log_e for a in found), reverse=True)
    assert all(a.earliest <= a.unit <= a.latest for a in found)


def test_stable_and_always_failing_tests_have_no_evidence():
    fails = np.array([[0] * 20, [1] * 20])
    assert conditional_log_e(histories(fails)).tolist() == [0.0, 0.0]
    assert alerts(histories(fails)) == ()


def test_an_outage_is_left_out_and_hides_no_real_change():
    failed = np.zeros((10, 6), bool)
    failed[:, 2] = True
    failed[0, 3:] = True
    ran = np.ones_like(failed)
    ran[1:, 5] = False
    assert usable_runs(failed, ran).tolist() == [True, True, False, True, True, True]
    with pytest.raises(ValueError, match="same shape"):
        usable_runs(failed, ran[:5])


def test_runs_collapse_to_commits():
    failed = np.array([[True, False, True, True], [False, False, True, False]])
    ran = np.array([[True, True, True, False], [True, False, True, True]])
    fails, runs = collapse_to_commits(failed, ran, np.array([0, 0, 1, 2]))
    assert fails.tolist() == [[1, 1, 0], [0, 1, 0]]
    assert runs.tolist() == [[2, 1, 0], [1, 1, 1]]
    with pytest.raises(ValueError, match="commit order"):
        collapse_to_commits(failed, ran, np.array([0, 2, 1, 2]))


def test_permutations_confirm_a_step_and_hold_their_level_on_overdispersed_commits():
    rng = np.random.default_rng(5)
    step = [0] * 15 + [3] * 15
    assert permutation_p_value(step, [4] * 30, rng, 499) == pytest.approx(1 / 500)
    # Whole commits fail or pass together: a run-wise test would take the clumps for changes.
    p_values = [permutation_p_value(4 * (rng.random(40) < 0.1), [4] * 40, rng, 99) for _ in range(200)]
    # 10 expected at 0.05; more than 24 has probability below 1e-4.
    assert sum(p <= 0.05 for p in p_values) <= 24
    assert permutation_p_value([1], [2], rng) == 1.0
