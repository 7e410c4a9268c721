"""Simulated searches among preceding tests: the product's choice and detect-test-pollution's halving rule.

`next_choice` of `service.stats.order` is these same calls on one search; it is held to them in
`tests/stats/test_search_benchmarks.py`.
"""

from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy import Searches
from service.stats.causes import CauseKind, OrderPlan, cause_table, order_posterior
from service.stats.order import best_subset


@dataclass(frozen=True, slots=True)
class OrderProblem:
    """A cause of one kind among n units; `given` full-suite and as many victim-alone runs are known and not counted."""

    name: str
    kind: CauseKind
    plan: OrderPlan
    p: float = 0.65
    q: float = 0.0
    given: int = 10
    most_runs: int = 400


def search_order(problem: OrderProblem, first: int, trials: int, seed: int) -> Searches:
    """The product's searches number `first` .. `first + trials - 1`, each with its own generator."""
    plan, table = problem.plan, cause_table(problem.plan)
    kinds = np.array([table.cause(h).kind is problem.kind for h in range(len(table.kind))])
    used, suites = np.zeros(trials), np.zeros(trials)
    named, right = np.zeros(trials, bool), np.zeros(trials, bool)
    for m in range(trials):
        rng = np.random.default_rng([seed, first + m])
        truth = int(rng.choice(np.flatnonzero(kinds)))
        i, j = table.i[truth], table.j[truth]
        subsets = np.zeros((problem.most_runs + 2, plan.n_units), bool)
        subsets[0] = True
        runs, fails = np.zeros(len(subsets)), np.zeros(len(subsets))
        runs[:2] = problem.given
        fails[:2] = rng.binomial(problem.given, (problem.p, problem.q))
        for k in range(2, len(subsets)):
            posterior = order_posterior(plan, subsets[:k], runs[:k], fails[:k])
            best = int(posterior.weight.argmax())
            if posterior.weight[best] >= plan.stop:
                named[m], right[m] = True, best == truth
                break
            subset, _ = best_subset(plan, posterior, rng)
            triggered = (subset[i] or subset[j]) if problem.kind is CauseKind.OR else (subset[i] and subset[j])
            subsets[k], runs[k] = subset, 1
            fails[k] = rng.random() < (problem.p if triggered else problem.q)
            used[m] += 1
            suites[m] += float(plan.time_share(subset))
    return Searches(used, suites, named, right)


def search_halving(problem: OrderProblem, trials: int, seed: int, repeats: int = 1) -> Searches:
    """detect-test-pollution's rule: run the first half, `repeats` times at most; it fails once -> keep it, else the other.

    The test left over is run once more alone with the victim; when that passes, the tool raises and names nothing.
    """
    n = problem.plan.n_units
    rng = np.random.default_rng(seed)
    used, suites = np.zeros(trials), np.zeros(trials)
    named, right = np.zeros(trials, bool), np.zeros(trials, bool)
    for m in range(trials):
        cause = set(rng.choice(n, 1 if problem.kind is CauseKind.SINGLE else 2, replace=False).tolist())

        def fails(members: range, m: int = m, cause: set[int] = cause) -> bool:
            present = cause & set(members)
            triggered = bool(present) if problem.kind is CauseKind.OR else present == cause
            for _ in range(repeats):
                used[m] += 1
                suites[m] += (len(members) + 1) / (n + 1)
                if rng.random() < (problem.p if triggered else problem.q):
                    return True
            return False

        low, high = 0, n
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fails(range(low, middle)) else (middle, high)
        named[m] = fails(range(low, high))
        right[m] = named[m] and cause == {low}
    return Searches(used, suites, named, right)
