"""Simulated commit searches, many at once: the product's choice and git-bayesect's, on the same problem.

A lockstep simulation calls the two functions that `service.stats.commits.next_choice` calls, on arrays with one row per
search.
"""

import importlib.util
from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy import Searches
from service.stats.commits import best_visit, commit_posterior
from service.stats.rates import rate_grid


@dataclass(frozen=True, slots=True)
class CommitProblem:
    """N changes of which one raises the failure rate; what is known before the first visit is not counted."""

    name: str
    p_old: float = 0.1
    p_new: float = 0.65
    n_changes: int = 64
    old_runs: int = 20
    new_runs: int = 20
    history: int = 0
    build_cost: float = 0.0
    hot: float = 0.0
    most_runs: int = 600


@dataclass(slots=True)
class Trials:
    """The state of simulated searches: rows are searches, columns versions."""

    change: np.ndarray
    rate: np.ndarray
    runs: np.ndarray
    fails: np.ndarray
    prior: np.ndarray


def draw_trials(problem: CommitProblem, trials: int, rng: np.random.Generator) -> Trials:
    """Searches with a culprit drawn from the prior, and the runs that are given."""
    n = problem.n_changes
    prior = np.full(n, 1 / n)
    if problem.hot:
        touched = rng.choice(n, max(1, n // 10), replace=False)
        prior *= 1 - problem.hot
        prior[touched] += problem.hot / touched.size
    change = rng.choice(n, trials, p=prior)
    rate = np.where(np.arange(n + 1) > change[:, None], problem.p_new, problem.p_old)
    given = np.full(n + 1, problem.history)
    given[0] += problem.old_runs
    given[n] += problem.new_runs
    runs = np.tile(given, (trials, 1)).astype(float)
    return Trials(change, rate, runs, rng.binomial(given, rate).astype(float), prior)


def search_commits(
    problem: CommitProblem, trials: int, seed: int, stop: float = 0.95, no_change: float = 0.05
) -> Searches:
    """The product's searches: default plan, one run a visit."""
    rng = np.random.default_rng(seed)
    t = draw_trials(problem, trials, rng)
    n, grid = problem.n_changes, rate_grid()
    built = np.zeros(t.runs.shape, bool)
    built[:, [0, n]] = True
    used, named = np.zeros(trials), np.full(trials, -1)
    live = np.arange(trials)
    for _ in range(problem.most_runs + 1):
        posterior = commit_posterior(t.runs[live], t.fails[live], t.prior, no_change, grid)
        done = posterior.weight.max(-1) >= stop
        named[live[done]] = posterior.weight[done].argmax(-1)
        if done.all():
            break
        posterior = type(posterior)(posterior.weight[~done], posterior.mean_old[~done], posterior.mean_new[~done])
        live = live[~done]
        version, _ = best_visit(posterior, np.ones(n + 1), built[live], problem.build_cost)
        built[live, version] = True
        t.runs[live, version] += 1
        t.fails[live, version] += rng.random(live.size) < t.rate[live, version]
        used[live] += 1
    return Searches(used, built.sum(1) - 2.0, named >= 0, named == t.change, np.zeros(trials))


def has_git_bayesect() -> bool:
    """Whether the extra `bench` is installed."""
    return importlib.util.find_spec("git_bayesect") is not None


def search_git_bayesect(problem: CommitProblem, trials: int, seed: int, stop: float = 0.95) -> Searches:
    """git-bayesect's own Bisector on the same problems; it knows no costs and is told the given runs one by one."""
    from git_bayesect import Bisector

    rng = np.random.default_rng(seed)
    t = draw_trials(problem, trials, rng)
    n = problem.n_changes
    used, builds = np.zeros(trials), np.zeros(trials)
    named, right = np.zeros(trials, bool), np.zeros(trials, bool)
    for m in range(trials):
        # Its index i is our version n - i, its last index the hypothesis that every version is new.
        search = Bisector(np.ones(n + 1))
        for version in np.flatnonzero(t.runs[m]):
            for k in range(int(t.runs[m, version])):
                search.record(int(n - version), k < t.fails[m, version])
        visited = {0, n}
        while (weight := search.distribution).max() < stop and used[m] < problem.most_runs:
            version = n - search.select()
            visited.add(version)
            search.record(n - version, bool(rng.random() < t.rate[m, version]))
            used[m] += 1
        builds[m] = len(visited) - 2
        named[m] = weight.max() >= stop
        right[m] = named[m] and n - 1 - int(weight.argmax()) == t.change[m]
    return Searches(used, builds, named, right, np.zeros(trials))
