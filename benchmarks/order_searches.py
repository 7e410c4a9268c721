"""Simulated searches among preceding tests: the product's choice and detect-test-pollution's halving rule.

`next_choice` of `service.stats.order` is these same calls on one search; it is held to them in
`tests/stats/test_search_benchmarks.py`.
"""

from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy import Searches
from service.stats.causes import CauseKind, OrderPlan, cause_table, order_posterior
from service.stats.order import best_subset
from service.stats.sequential import Claim, Counts, Stop, build_boundary, first_stop

MOST_CONFIRMING = 300


@dataclass(frozen=True, slots=True)
class OrderProblem:
    """A cause of one kind among n units; `given` full-suite and as many victim-alone runs are known and not counted.

    `is_confirmed`: each named cause goes through an A/B of the full suite against the suite without it; when that does
    not implicate, its counts are added and the search goes on.
    """

    name: str
    kind: CauseKind
    plan: OrderPlan
    p: float = 0.65
    q: float = 0.0
    given: int = 10
    most_runs: int = 400
    is_confirmed: bool = False


def search_order(problem: OrderProblem, first: int, trials: int, seed: int) -> Searches:
    """The product's searches number `first` .. `first + trials - 1`, each with its own generator."""
    plan, table = problem.plan, cause_table(problem.plan)
    kinds = np.array([table.cause(h).kind is problem.kind for h in range(len(table.kind))])
    used, suites = np.zeros(trials), np.zeros(trials)
    named, right = np.zeros(trials, bool), np.zeros(trials, bool)
    confirming = np.zeros(trials)
    for m in range(trials):
        rng = np.random.default_rng([seed, first + m])
        truth = int(rng.choice(np.flatnonzero(kinds)))
        i, j = table.i[truth], table.j[truth]

        def rate(subset: np.ndarray, i: int = i, j: int = j) -> float:
            triggered = (subset[i] or subset[j]) if problem.kind is CauseKind.OR else (subset[i] and subset[j])
            return problem.p if triggered else problem.q

        full, alone = np.ones(plan.n_units, bool), np.zeros(plan.n_units, bool)
        subsets, runs = [full, alone], [problem.given, problem.given]
        fails = [rng.binomial(n, rate(s)) for s, n in zip(subsets, runs, strict=True)]
        while used[m] < problem.most_runs:
            posterior = order_posterior(plan, np.array(subsets), np.array(runs, float), np.array(fails, float))
            best = int(posterior.weight.argmax())
            if posterior.weight[best] >= plan.stop:
                without = full.copy()
                without[list(table.cause(best).units)] = False
                if (
                    not problem.is_confirmed
                    or (ab := _confirm(rng, rate(full), rate(without))).claim is Claim.IMPLICATED
                ):
                    named[m], right[m] = True, best == truth
                    confirming[m] += 2 * ab.n if problem.is_confirmed else 0
                    break
                confirming[m] += 2 * ab.n
                subsets += [full, without]
                runs += [ab.n, ab.n]
                fails += [ab.counts.a_match, ab.counts.b_match]
                if confirming[m] > MOST_CONFIRMING:
                    break
                continue
            subset, _ = best_subset(plan, posterior, rng)
            subsets.append(subset)
            runs.append(1)
            fails.append(int(rng.random() < rate(subset)))
            used[m] += 1
            suites[m] += float(plan.time_share(subset))
    return Searches(used, suites, named, right, confirming)


def _confirm(rng: np.random.Generator, p_control: float, p_treated: float) -> Stop:
    """The default A/B of design section 6 at these rates; a FUTILE stop where the most blocks end without a claim."""
    boundary = build_boundary(30)
    outcomes = rng.random((boundary.blocks, 2)) < (p_control, p_treated)
    blocks = [Counts(1, int(a), 0, int(b), 0) for a, b in outcomes]
    return first_stop(boundary, blocks) or Stop(boundary.blocks, Claim.FUTILE, sum(blocks, Counts()))


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
    return Searches(used, suites, named, right, np.zeros(trials))
