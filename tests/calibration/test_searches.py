"""Both searches claim 0.95 when they stop: held against their accuracy, with fixed seeds and binomial bands."""

import numpy as np
import pytest
from scipy.stats import binom

from benchmarks.commit_searches import CommitProblem, draw_trials, search_commits
from benchmarks.order_searches import OrderProblem, search_order
from service.stats.causes import CauseKind, OrderPlan
from service.stats.commits import CommitPlan, CommitStep, commit_evidence, next_choice
from service.stats.rates import binary_entropy, rate_grid

CLAIMED = 0.95


def fewest_right(trials):
    """Fewer right answers than this have probability below 1e-4 when each is right with the claimed probability."""
    return int(binom.ppf(1e-4, trials, CLAIMED))


def fano(p_old, p_new, n):
    """Runs that any search needs for 0.95 with known rates: Fano's bound over the capacity of the channel."""
    x = np.linspace(0, 1, 20_001)
    mixed = binary_entropy(x * p_new + (1 - x) * p_old)
    capacity = (mixed - x * binary_entropy(p_new) - (1 - x) * binary_entropy(p_old)).max()
    return (CLAIMED * np.log(n) - float(binary_entropy(CLAIMED))) / capacity


def test_the_bound_is_the_tabulated_one():
    # Statistics facts 3a: 21.3 and 11.9 runs for 64 changes.
    assert fano(0.1, 0.65, 64) == pytest.approx(21.3, abs=0.06)
    assert fano(0.0, 0.65, 64) == pytest.approx(11.9, abs=0.06)


@pytest.mark.parametrize("p_old", [0.0, 0.1])
def test_commit_searches_are_as_accurate_as_they_claim_and_near_the_bound(p_old):
    problem = CommitProblem("", p_old=p_old, n_changes=32)
    got = search_commits(problem, 1000, 1)
    assert got.named.all()
    assert got.right.sum() >= fewest_right(1000)
    assert got.runs.mean() <= 1.6 * fano(p_old, 0.65, 32) + 5


@pytest.mark.parametrize(
    "problem",
    [
        CommitProblem("builds", n_changes=32, build_cost=5.0),
        CommitProblem("history", n_changes=32, history=1),
        CommitProblem("files", n_changes=32, hot=0.8),
    ],
    ids=lambda problem: problem.name,
)
def test_costs_history_and_priors_keep_the_accuracy(problem):
    got = search_commits(problem, 500, 2)
    assert got.named.all()
    assert got.right.sum() >= fewest_right(500)


def test_what_the_simulation_does_is_what_next_choice_does():
    problem = CommitProblem("", n_changes=32)
    trials = 40
    simulated = search_commits(problem, trials, 3)
    rng = np.random.default_rng(3)
    t = draw_trials(problem, trials, rng)
    runs, fails = t.runs.astype(int), t.fails.astype(int)
    built = [{0, 32} for _ in range(trials)]
    live, used, right = list(range(trials)), np.zeros(trials), np.zeros(trials, bool)
    plan = CommitPlan(grid=rate_grid())
    while live:
        versions = {}
        for m in live:
            choice = next_choice(commit_evidence(runs[m].tolist(), fails[m].tolist(), built=built[m]), plan)
            if choice.step is CommitStep.VISIT:
                versions[m] = choice.version
            else:
                right[m] = choice.suspects == (t.change[m],)
        live = list(versions)
        # The simulation draws one number per live search and step, in order.
        for m, draw in zip(live, rng.random(len(live)), strict=True):
            v = versions[m]
            built[m].add(v)
            runs[m, v] += 1
            fails[m, v] += draw < t.rate[m, v]
            used[m] += 1
    np.testing.assert_array_equal(used, simulated.runs)
    np.testing.assert_array_equal(right, simulated.right)
    np.testing.assert_array_equal([len(b) - 2 for b in built], simulated.second)


@pytest.mark.parametrize(("kind", "trials"), [(CauseKind.SINGLE, 100), (CauseKind.AND, 40)])
def test_order_searches_are_as_accurate_as_they_claim(kind, trials):
    got = search_order(OrderProblem("", kind, OrderPlan(32)), 0, trials, 1)
    assert got.named.all()
    assert got.right.sum() >= fewest_right(trials)


def test_an_or_pair_is_found_once_its_members_have_been_refuted():
    got = search_order(OrderProblem("", CauseKind.OR, OrderPlan(16), is_confirmed=True), 0, 40, 1)
    assert got.right.sum() >= fewest_right(40)
    assert got.confirming.mean() > 14
