"""Order search: the posterior and the quadratic form by brute force, the steps, brittle and cleaner variants, blocks."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.stats.causes import Cause, CauseKind, OrderPlan, OrderSearch, cause_table, order_posterior
from service.stats.order import OrderStep, SubsetRuns, best_subset, blocks_by_file, next_choice
from service.stats.rates import binary_entropy, evidence, rate_grid

SMALL = OrderPlan(5, none=0.1, single=0.5, and_pair=0.2, or_pair=0.2)


def triggers(cause, subset):
    if cause.kind is CauseKind.NONE:
        return False
    return (any if cause.kind is CauseKind.OR else all)(unit in subset for unit in cause.units)


def brute_force(plan, found):
    table = cause_table(plan)
    log_weight, rates = [], []
    for h in range(len(table.kind)):
        cause = table.cause(h)
        counts = np.zeros((2, 2))
        for subset, runs, fails in found:
            counts[int(triggers(cause, subset))] += (fails, runs - fails)
        if cause.kind is CauseKind.NONE:
            total = counts.sum(0)
            grid = plan.grid
            marginal = [(grid.weight.sum(1) / 2, grid.old), (grid.weight.sum(0) / 2, grid.new)]
            mass = sum((w * p ** total[0] * (1 - p) ** total[1]).sum() for w, p in marginal)
            log_weight.append(table.log_prior[h] + np.log(mass))
            rates.append((np.nan, np.nan))
        else:
            got = evidence(plan.grid, *counts[0], *counts[1])
            log_weight.append(table.log_prior[h] + got.log_likelihood)
            rates.append((got.mean_old, got.mean_new))
    weight = np.exp(np.array(log_weight) - max(log_weight))
    return weight / weight.sum(), np.array(rates)


runs_of_subsets = st.lists(
    st.tuples(st.sets(st.integers(0, 4)), st.integers(1, 6)).flatmap(
        lambda pair: st.tuples(st.just(pair[0]), st.just(pair[1]), st.integers(0, pair[1]))
    ),
    min_size=1,
    max_size=6,
)


def arrays(found, n):
    subsets = np.array([[unit in subset for unit in range(n)] for subset, _, _ in found])
    return subsets, np.array([f[1] for f in found], float), np.array([f[2] for f in found], float)


@given(runs_of_subsets)
@settings(max_examples=40)
def test_the_posterior_is_the_enumeration_over_causes(found):
    got = order_posterior(SMALL, *arrays(found, 5))
    weight, rates = brute_force(SMALL, found)
    np.testing.assert_allclose(got.weight, weight, atol=1e-12)
    np.testing.assert_allclose(got.mean_old[1:], rates[1:, 0], rtol=1e-9)
    np.testing.assert_allclose(got.mean_new[1:], rates[1:, 1], rtol=1e-9)


def information(plan, posterior, subset):
    table = cause_table(plan)
    hit = np.array([triggers(table.cause(h), subset) for h in range(len(table.kind))])
    p = np.where(hit, posterior.mean_new, posterior.mean_old)
    return float(binary_entropy(posterior.weight @ p) - posterior.weight @ binary_entropy(p))


@given(st.integers(0, 1000))
@settings(max_examples=25)
def test_the_chosen_subset_comes_close_to_the_best_of_all(seed):
    rng = np.random.default_rng(seed)
    plan = replace(SMALL, unit_time=tuple(rng.uniform(0.2, 3.0, 5)), victim_time=0.5)
    found = [(set(np.flatnonzero(rng.random(5) < 0.5).tolist()), 3, int(rng.integers(4))) for _ in range(4)]
    posterior = order_posterior(plan, *arrays(found, 5))
    best = -1.0
    for bits in range(32):
        subset = np.array([bool(bits >> unit & 1) for unit in range(5)])
        cost = plan.fixed_cost + (1 - plan.fixed_cost) * float(plan.time_share(subset))
        best = max(best, information(plan, posterior, set(np.flatnonzero(subset).tolist())) / cost)
    subset, gain = best_subset(plan, posterior, rng)
    cost = plan.fixed_cost + (1 - plan.fixed_cost) * float(plan.time_share(subset))
    assert gain == pytest.approx(information(plan, posterior, set(np.flatnonzero(subset).tolist())), abs=1e-9)
    # Steepest ascent from a few starts: a local optimum is allowed, a poor one is not.
    assert 0.85 * best <= gain / cost <= best + 1e-9


def test_a_dear_unit_is_left_out_when_it_says_little():
    plan = OrderPlan(4, unit_time=(1.0, 1.0, 1.0, 500.0), relevance=(1.0, 1.0, 1.0, 0.05))
    found = [SubsetRuns(frozenset(range(4)), 10, 7), SubsetRuns(frozenset(), 10, 0)]
    choice = next_choice(plan, found, np.random.default_rng(0))
    assert choice.step is OrderStep.RUN
    assert 3 not in choice.subset
    assert 0 < len(choice.subset) < 3


@pytest.mark.parametrize("kind", [CauseKind.SINGLE, CauseKind.AND, CauseKind.OR])
@pytest.mark.parametrize("search", list(OrderSearch))
def test_a_deterministic_cause_is_named_in_every_variant(kind, search):
    plan = OrderPlan(12, search=search)
    truth = Cause(kind, (7,) if kind is CauseKind.SINGLE else (3, 7))
    rng = np.random.default_rng(5)

    def fails(subset):
        return triggers(truth, subset) == search.event_is_failure

    everything = frozenset(range(12))
    # Leaving one unit out, as a confirming A/B does, is what tells an OR-pair from either of its units.
    tried = [everything, frozenset(), *(everything - {unit} for unit in truth.units)]
    found = [SubsetRuns(s, 10, 10 * fails(s)) for s in tried]
    for _ in range(80):
        choice = next_choice(plan, found, rng)
        if choice.step is not OrderStep.RUN:
            break
        subset = frozenset(choice.subset)
        found.append(SubsetRuns(subset, 1, int(fails(subset))))
    assert (choice.step, choice.best) == (OrderStep.CONFIRM, truth)
    assert min(choice.unit_probability[unit] for unit in truth.units) > 0.9
    assert choice.ranked[0] == (choice.best, choice.probability)


def test_equal_rates_with_and_without_all_units_end_without_a_cause():
    found = [SubsetRuns(frozenset(range(6)), 300, 90), SubsetRuns(frozenset(), 300, 90)]
    choice = next_choice(OrderPlan(6, none=0.5, single=0.5, and_pair=0, or_pair=0), found, np.random.default_rng(0))
    assert (choice.step, choice.best.kind) == (OrderStep.NO_CAUSE, CauseKind.NONE)


def test_a_refuted_winner_gives_way_to_the_or_pair_that_hides_it():
    everything = frozenset(range(8))
    found = [SubsetRuns(everything, 10, 7), SubsetRuns(frozenset(), 10, 0), SubsetRuns(frozenset({2}), 8, 5)]
    plan = OrderPlan(8, stop=0.9)
    named = next_choice(plan, found, np.random.default_rng(0))
    assert (named.step, named.best) == (OrderStep.CONFIRM, Cause(CauseKind.SINGLE, (2,)))
    refuted = [*found, SubsetRuns(everything, 30, 20), SubsetRuns(everything - {2}, 30, 19)]
    after = next_choice(plan, refuted, np.random.default_rng(0))
    assert after.step is OrderStep.RUN
    assert after.best.kind is CauseKind.OR
    assert 2 in after.best.units


def test_a_second_failed_confirmation_of_one_cause_ends_the_search():
    found = [SubsetRuns(frozenset({0, 1}), 20, 14), SubsetRuns(frozenset({0}), 2, 1), SubsetRuns(frozenset({1}), 4, 0)]
    plan, cause = OrderPlan(2, stop=0.9), Cause(CauseKind.SINGLE, (0,))
    steps = [next_choice(plan, found, np.random.default_rng(0), None, (cause,) * k).step for k in range(3)]
    assert steps == [OrderStep.CONFIRM, OrderStep.RUN, OrderStep.COULD_NOT_TELL]


def test_a_spent_budget_names_the_likeliest_causes_only():
    choice = next_choice(OrderPlan(6), [SubsetRuns(frozenset(range(6)), 5, 3)], np.random.default_rng(0), 0)
    assert choice.step is OrderStep.COULD_NOT_TELL
    assert "budget" in choice.reason
    assert len(choice.ranked) <= 10


def test_one_unit_needs_no_pairs():
    found = [SubsetRuns(frozenset({0}), 20, 14), SubsetRuns(frozenset(), 20, 0)]
    choice = next_choice(OrderPlan(1), found, np.random.default_rng(0))
    assert (choice.step, choice.best) == (OrderStep.CONFIRM, Cause(CauseKind.SINGLE, (0,)))


def test_causes_are_numbered_both_ways():
    table = cause_table(SMALL)
    assert [table.number(table.cause(h)) for h in range(len(table.kind))] == list(range(1 + 5 + 10 + 10))
    assert np.exp(table.log_prior).sum() == pytest.approx(1.0)
    with pytest.raises(ValueError, match="not among"):
        table.number(Cause(CauseKind.AND, (1,)))


def test_many_tests_become_blocks_of_one_file_in_order():
    files = ["a"] * 3 + ["b"] * 2 + ["a"] * 2
    assert blocks_by_file(files, 7) == tuple((i,) for i in range(7))
    assert blocks_by_file(files, 4) == ((0, 1, 2), (3, 4), (5, 6))
    two = blocks_by_file(files, 2)
    assert len(two) == 2
    assert [i for block in two for i in block] == list(range(7))
    assert len(blocks_by_file([str(i) for i in range(1000)])) == 200


def test_more_relevant_units_weigh_more_alone_and_in_pairs():
    table = cause_table(replace(SMALL, relevance=(3.0, 1.0, 1.0, 1.0, 1.0)))
    prior = np.exp(table.log_prior)
    assert prior[1] == pytest.approx(3 * prior[2])
    pair = [table.number(Cause(CauseKind.AND, units)) for units in ((0, 1), (1, 2))]
    assert prior[pair[0]] == pytest.approx(3 * prior[pair[1]])


WRONG = {
    "too many units": lambda: OrderPlan(201),
    "shares": lambda: OrderPlan(4, none=0.5),
    "stop": lambda: OrderPlan(4, stop=0.2),
    "relevance": lambda: OrderPlan(2, relevance=(1.0, 0.0)),
    "times": lambda: OrderPlan(3, unit_time=(1.0,)),
    "fixed cost": lambda: OrderPlan(3, fixed_cost=0.0),
    "counts": lambda: SubsetRuns(frozenset(), 1, 2),
    "stranger": lambda: next_choice(OrderPlan(2), [SubsetRuns(frozenset({5}), 1, 0)], np.random.default_rng(0)),
    "no blocks": lambda: blocks_by_file(["a"], 0),
}


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_wrong_requests_are_named(make):
    with pytest.raises(ValueError):
        make()


def test_the_grid_of_the_default_plan_is_the_one_of_the_facts():
    assert OrderPlan(2).grid is rate_grid((0.3, 6.0), (1.0, 1.0), 12)
