"""Commit search: the posterior against hand calculation and brute force, the choice, skips, costs and confirmation."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import xlogy
from scipy.stats import binom

from service.stats.commits import (
    CommitPlan,
    CommitStep,
    best_visit,
    commit_evidence,
    commit_posterior,
    highest_density,
    next_choice,
    prior_from_files,
    visit_gain,
)
from service.stats.rates import RateGrid, evidence, rate_grid

KNOWN = RateGrid(np.array([0.1]), np.array([0.6]), np.ones((1, 1)))


def entropy(p):
    return -xlogy(p, p).sum()


def brute_force_evidence(grid, of, op, nf, np_):
    likelihood = (
        grid.weight * (grid.old**of * (1 - grid.old) ** op)[:, None] * (grid.new**nf * (1 - grid.new) ** np_)[None, :]
    )
    total = likelihood.sum()
    return np.log(total), (likelihood.sum(1) @ grid.old) / total, (likelihood.sum(0) @ grid.new) / total


@given(*[st.integers(0, 30)] * 4)
def test_evidence_is_the_average_over_the_grid(of, op, nf, np_):
    got = evidence(rate_grid(), of, op, nf, np_)
    np.testing.assert_allclose(
        (got.log_likelihood, got.mean_old, got.mean_new), brute_force_evidence(rate_grid(), of, op, nf, np_), rtol=1e-9
    )


def test_evidence_against_the_direction_keeps_its_digits_where_the_tables_underflow():
    got = evidence(rate_grid(), [2000, 2000], 0, 0, [2000, 1999])
    grid = rate_grid()
    joint = 2000 * np.log(grid.old)[:, None] + 2000 * np.log1p(-grid.new)
    allowed = grid.weight > 0
    top = joint[allowed].max()
    want = top + np.log((np.exp(joint[allowed] - top) * grid.weight[allowed]).sum())
    assert got.log_likelihood[0] == pytest.approx(want, rel=1e-12)
    assert got.log_likelihood[1] > got.log_likelihood[0]
    assert (got.mean_old < got.mean_new).all()


def test_posterior_of_one_informative_version_by_hand():
    runs, fails = np.zeros(9), np.zeros(9)
    runs[3], fails[3] = 5, 2
    got = commit_posterior(runs, fails, np.ones(8), 0.0, KNOWN)
    old, new = 0.1**2 * 0.9**3, 0.6**2 * 0.4**3
    np.testing.assert_allclose(got.weight[:8], np.array([new] * 3 + [old] * 5) / (3 * new + 5 * old), rtol=1e-12)
    assert got.weight[8] == 0.0


def test_a_flat_history_is_no_change_and_a_step_is_not():
    grid = rate_grid()
    flat = commit_posterior(np.full(9, 60), np.full(9, 18), np.ones(8), 0.05, grid)
    step = commit_posterior(np.full(9, 60), np.r_[[6] * 4, [30] * 5], np.ones(8), 0.05, grid)
    assert flat.weight[-1] > 5 * 0.05
    assert step.weight[-1] < 1e-6
    assert step.weight.argmax() == 3


@given(st.integers(0, 2**31))
@settings(max_examples=30)
def test_gain_is_the_fall_of_entropy_that_a_run_is_expected_to_bring(seed):
    rng = np.random.default_rng(seed)
    runs = rng.integers(0, 5, 8)
    fails = rng.binomial(runs, 0.4)
    grid = rate_grid(size=5)
    posterior = commit_posterior(runs, fails, np.ones(7), 0.1, grid)
    for version in range(8):
        one = np.eye(8, dtype=int)[version]
        fail = (posterior.weight * np.where(np.arange(8) < version, posterior.mean_new, posterior.mean_old)).sum()
        after = [commit_posterior(runs + one, fails + y * one, np.ones(7), 0.1, grid).weight for y in (1, 0)]
        want = entropy(posterior.weight) - fail * entropy(after[0]) - (1 - fail) * entropy(after[1])
        assert visit_gain(posterior)[version] == pytest.approx(want, abs=1e-9)


def test_gain_of_several_runs_by_hand_at_known_rates():
    posterior = commit_posterior(np.zeros(3), np.zeros(3), np.ones(2), 0.0, KNOWN)
    new, old = binom.pmf(np.arange(4), 3, 0.6), binom.pmf(np.arange(4), 3, 0.1)
    want = entropy((new + old) / 2) - (entropy(new) + entropy(old)) / 2
    assert visit_gain(posterior, 3)[1] == pytest.approx(want, rel=1e-12)
    assert visit_gain(posterior, 1)[1] < visit_gain(posterior, 3)[1] < 3 * visit_gain(posterior, 1)[1]


def test_a_build_cost_keeps_the_search_at_versions_that_are_built():
    runs, fails = np.array([20, 0, 0, 0, 4, 0, 0, 0, 20]), np.array([2, 0, 0, 0, 1, 0, 0, 0, 13])
    posterior = commit_posterior(runs, fails, np.ones(8), 0.05, rate_grid())
    built = np.isin(np.arange(9), (0, 4, 8))
    assert best_visit(posterior, np.ones(9), built, 0.0)[0] != 4
    version, n_runs = best_visit(posterior, np.ones(9), built, 100.0)
    assert (int(version), int(n_runs) > 1) == (4, False)


def test_an_unbuildable_version_is_never_visited_and_its_changes_are_reported_together():
    runs, fails = [20, 30, 0, 0, 30, 20], [0, 0, 0, 0, 20, 13]
    choice = next_choice(commit_evidence(runs, fails, untestable={2, 3}), CommitPlan())
    assert choice.step is CommitStep.CONFIRM
    assert (choice.old, choice.new, choice.suspects) == (1, 4, (1, 2, 3))
    np.testing.assert_allclose(np.diff([choice.probability[c] for c in (1, 2, 3)]), 0, atol=1e-12)
    open_search = next_choice(
        commit_evidence([20, 0, 0, 0, 0, 20], [0, 0, 0, 0, 0, 13], untestable={2, 3}), CommitPlan()
    )
    assert open_search.step is CommitStep.VISIT
    assert open_search.version in {1, 4}
    assert sum(open_search.probability) + open_search.no_change == pytest.approx(1.0)


def test_an_unbuildable_version_with_history_still_divides_the_suspects():
    runs, fails = [20, 30, 40, 0, 30, 20], [0, 0, 0, 0, 20, 13]
    choice = next_choice(commit_evidence(runs, fails, untestable={2, 3}), CommitPlan())
    assert choice.step is CommitStep.CONFIRM
    assert choice.suspects == (1, 2, 3)
    assert choice.probability[1] < 1e-3 < choice.probability[2]


def test_a_refuted_confirmation_raises_the_bar_and_the_second_ends_the_search():
    runs, fails = [20, 3, 3, 20], [0, 0, 2, 13]
    found = commit_evidence(runs, fails)
    plan = CommitPlan(stop=0.9)
    first = next_choice(found, plan)
    assert (first.step, first.old, first.new) == (CommitStep.CONFIRM, 1, 2)
    assert next_choice(replace(found, unconfirmed=((1, 2),)), plan).step is CommitStep.VISIT
    ended = next_choice(replace(found, unconfirmed=((1, 2), (1, 2))), plan)
    assert ended.step is CommitStep.COULD_NOT_TELL
    assert "did not implicate" in ended.reason


def test_a_spent_budget_ends_with_the_credible_set_and_no_name():
    choice = next_choice(commit_evidence([20, 0, 0, 0, 20], [2, 0, 0, 0, 13], runs_left=0), CommitPlan())
    assert choice.step is CommitStep.COULD_NOT_TELL
    assert choice.credible == (0, 1, 2, 3)
    assert "budget" in choice.reason


def test_equal_rates_everywhere_end_as_no_change():
    choice = next_choice(commit_evidence([300] * 5, [90] * 5), CommitPlan(no_change=0.5))
    assert choice.step is CommitStep.NO_CHANGE


def test_visits_take_at_most_the_planned_and_the_remaining_runs():
    found = commit_evidence([20, 0, 0, 0, 20], [2, 0, 0, 0, 13])
    assert next_choice(found, CommitPlan(build_cost=5)).n_runs == 1
    assert next_choice(found, CommitPlan(build_cost=5, most_runs_per_visit=4)).n_runs in {3, 4}
    assert next_choice(replace(found, runs_left=2), CommitPlan(build_cost=50, most_runs_per_visit=6)).n_runs == 2


def test_history_alone_can_name_the_change_without_a_visit():
    choice = next_choice(commit_evidence([40] * 6, [1, 0, 2, 25, 28, 24]), CommitPlan())
    assert (choice.step, choice.suspects) == (CommitStep.CONFIRM, (2,))


def test_priors_by_files_share_the_weight_and_leave_none_at_zero():
    changed = [{"a.py"}, {"src/kernel/x.cu"}, {"docs/y.md"}, {"b.py"}]
    prior = prior_from_files(changed, {"src/kernel", "a.py"}, share=0.8)
    assert prior == pytest.approx((0.45, 0.45, 0.05, 0.05))
    assert prior_from_files(changed, {"nothing.c"}) == pytest.approx((0.25,) * 4)
    assert prior_from_files([{"srcx/a"}, {"src/a"}], {"src"})[0] < 0.5


def test_highest_density_is_the_smallest_set():
    assert highest_density([0.05, 0.5, 0.05, 0.4], 0.9) == (1, 3)
    assert highest_density([0.0, 0.0]) == ()


WRONG = {
    "zero prior": lambda: CommitPlan(prior=(0.5, 0.0)),
    "stop of one": lambda: CommitPlan(stop=1.0),
    "no change certain": lambda: CommitPlan(no_change=1.0),
    "negative cost": lambda: CommitPlan(build_cost=-1),
    "more failures than runs": lambda: commit_evidence([3, 2], [4, 0]),
    "one version": lambda: commit_evidence([3], [0]),
    "untestable end": lambda: commit_evidence([0, 1, 1], [0, 0, 0], untestable={0}),
    "long prior": lambda: next_choice(commit_evidence([1, 1], [0, 1]), CommitPlan(prior=(0.5, 0.5))),
    "no changes": lambda: prior_from_files([], {"a"}),
    "rate of zero": lambda: RateGrid(np.zeros(1), np.array([0.6]), np.ones((1, 1))),
    "shape of weights": lambda: RateGrid(np.array([0.1]), np.array([0.6]), np.ones((2, 1))),
    "sum of weights": lambda: RateGrid(np.array([0.1]), np.array([0.6]), np.full((1, 1), 0.5)),
}


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_wrong_input_is_named(make):
    with pytest.raises(ValueError):
        make()


def test_jeffreys_without_direction_agrees_with_git_bayesect():
    if importlib.util.find_spec("git_bayesect") is None:
        pytest.skip("git_bayesect is not installed (extra `bench`)")
    from git_bayesect import Bisector

    rng = np.random.default_rng(3)
    grid = rate_grid((0.5, 0.5), (0.5, 0.5), 40, 1e-6, None)
    for _ in range(10):
        theirs, runs, fails = Bisector([1] * 17), np.zeros(17), np.zeros(17)
        change = rng.integers(16)
        for version in rng.integers(17, size=30):
            failed = bool(rng.random() < (0.65 if version > change else 0.1))
            theirs.record(int(16 - version), failed)
            runs[version] += 1
            fails[version] += failed
        # Its index i is our version 16 - i; its last index means "no change".
        want = np.asarray(theirs.distribution)[:16][::-1]
        got = commit_posterior(runs, fails, np.ones(16), 0.0, grid).weight[:16]
        np.testing.assert_allclose(got, want / want.sum(), atol=1e-9)
