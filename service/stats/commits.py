"""Which commit raised the failure rate: noisy bisection with unknown rates, skips, costs and history.

Versions v = 0 (good base) .. N (bad head); change c in 0..N-1 lies between version c and version c + 1. Hypothesis c
says that versions 0..c fail at the old rate and c+1..N at the new, higher one; hypothesis N says "no change": one rate
for all. The rates are unknown (`rates.RateGrid`). The next visit has the largest expected information about the change
for its cost, counted in runs. A change that reaches the stopping probability is not an answer yet: it is confirmed by
an A/B of the two versions around it, as a child experiment.

Assumes at most one change and independent runs. Guarantee: none by theorem. The claimed probability is held against the
accuracy in `tests/calibration`; it is honest from 0.1 -> 0.65, slightly too high for close rates (0.2 -> 0.5: 0.93).
Model and choice: statistics facts 3a; the same idea with Beta rates and no direction is git_bayesect.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from service.stats.rates import FloatArray, RateGrid, binary_entropy, evidence, normalise, one_rate, rate_grid

IntArray = NDArray[np.intp]

# Visits that are weighed against each other when a build must be paid: its price is shared by all runs of the visit.
_PLANNED_RUNS = (1, 3, 6)
_FAILED_CONFIRMATIONS = 2


@dataclass(frozen=True, slots=True, eq=False)
class CommitPosterior:
    """Per hypothesis (last axis, N changes and then "no change"): probability and mean rates given the hypothesis."""

    weight: FloatArray
    mean_old: FloatArray
    mean_new: FloatArray


@dataclass(frozen=True, slots=True)
class CommitEvidence:
    """Everything known about the versions 0..N: CI history, the A/B of the ends, and the runs of this search.

    `testable[v]` is False for a skipped or unbuildable version: it is never visited, its changes keep their prior.
    `unconfirmed` lists pairs (old, new) whose confirming A/B did not implicate; the counts of that A/B are in `runs`.
    """

    runs: tuple[int, ...]
    fails: tuple[int, ...]
    testable: tuple[bool, ...]
    built: tuple[bool, ...]
    unconfirmed: tuple[tuple[int, int], ...] = ()
    runs_left: int | None = None

    def __post_init__(self) -> None:
        n = len(self.runs)
        if n < 2:
            raise ValueError(f"a search needs at least two versions, got {n}")
        for name in ("fails", "testable", "built"):
            if len(getattr(self, name)) != n:
                raise ValueError(f"{name} has {len(getattr(self, name))} entries, runs has {n}")
        for version, (runs, fails) in enumerate(zip(self.runs, self.fails, strict=True)):
            if not 0 <= fails <= runs:
                raise ValueError(f"version {version} has {fails} failures in {runs} runs")
        for end in (0, n - 1):
            if not self.testable[end] and not self.runs[end]:
                raise ValueError(f"version {end} is an end of the range: it must be testable or have runs")


def commit_evidence(
    runs: Sequence[int],
    fails: Sequence[int],
    *,
    untestable: Collection[int] = (),
    built: Collection[int] | None = None,
    unconfirmed: Sequence[tuple[int, int]] = (),
    runs_left: int | None = None,
) -> CommitEvidence:
    """The evidence from counts per version; `built` defaults to the two ends, where the A/B has run."""
    n = len(runs)
    have = {0, n - 1} if built is None else set(built)
    return CommitEvidence(
        tuple(map(int, runs)),
        tuple(map(int, fails)),
        tuple(v not in untestable for v in range(n)),
        tuple(v in have for v in range(n)),
        tuple(unconfirmed),
        runs_left,
    )


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """How a search is run: fixed before its first visit and stored with the experiment.

    `prior` [N] weighs the changes (None: all alike); `build_cost` is in runs; `most_runs_per_visit` lets one visit take
    several runs where a lease or a build is dear. `grid` None: the default priors, as fine as the number of runs needs.
    """

    prior: tuple[float, ...] | None = None
    no_change: float = 0.05
    stop: float = 0.95
    build_cost: float = 0.0
    most_runs_per_visit: int = 1
    grid: RateGrid | None = None

    def __post_init__(self) -> None:
        if self.prior is not None and min(self.prior, default=0.0) <= 0:
            raise ValueError("every change needs a prior above 0: a zero can never be unlearned")
        if not 0 <= self.no_change < 1:
            raise ValueError(f"no_change must lie in [0, 1), got {self.no_change}")
        if not 0.5 < self.stop < 1:
            raise ValueError(f"stop must lie in (0.5, 1), got {self.stop}")
        if self.build_cost < 0 or self.most_runs_per_visit < 1:
            raise ValueError(
                f"build_cost {self.build_cost} must be >= 0, most_runs_per_visit {self.most_runs_per_visit} >= 1"
            )


class CommitStep(StrEnum):
    """What a search does next."""

    VISIT = "visit"
    CONFIRM = "confirm"
    NO_CHANGE = "no_change"
    COULD_NOT_TELL = "could_not_tell"


@dataclass(frozen=True, slots=True)
class CommitChoice:
    """The next step and what is known so far.

    VISIT: run `version` `n_runs` times. CONFIRM: an A/B of versions `old` and `new`; `suspects` are the changes between
    them. `probability[c]` is the posterior of change c, `no_change` that of the last hypothesis, `credible` the
    smallest set of changes with 90 %. `reason` says why a search ended without a change.
    """

    step: CommitStep
    probability: tuple[float, ...]
    no_change: float
    suspects: tuple[int, ...]
    credible: tuple[int, ...]
    version: int | None = None
    n_runs: int = 0
    old: int | None = None
    new: int | None = None
    reason: str = ""


def commit_posterior(
    runs: ArrayLike, fails: ArrayLike, prior: ArrayLike, no_change: float, grid: RateGrid
) -> CommitPosterior:
    """The posterior over the N changes and "no change", from counts [..., N+1] and a prior [N] of any scale.

    "No change" is one rate for all versions, half the time from the old and half from the new marginal of the grid.
    """
    runs, fails = np.asarray(runs, float), np.asarray(fails, float)
    weights = np.asarray(prior, float)
    if weights.shape != (runs.shape[-1] - 1,):
        raise ValueError(f"prior has shape {weights.shape}, expected ({runs.shape[-1] - 1},)")
    old_runs, old_fails = np.cumsum(runs, -1)[..., :-1], np.cumsum(fails, -1)[..., :-1]
    all_runs, all_fails = runs.sum(-1), fails.sum(-1)
    new_runs, new_fails = all_runs[..., None] - old_runs, all_fails[..., None] - old_fails
    change = evidence(grid, old_fails, old_runs - old_fails, new_fails, new_runs - new_fails)
    flat = evidence(one_rate(grid), 0, 0, all_fails, all_runs - all_fails)
    with np.errstate(divide="ignore"):
        log_prior = np.log(np.append((1 - no_change) * weights / weights.sum(), no_change))
    log_weight = np.concatenate([change.log_likelihood, flat.log_likelihood[..., None]], -1) + log_prior
    mean_old = np.concatenate([change.mean_old, flat.mean_new[..., None]], -1)
    mean_new = np.concatenate([change.mean_new, flat.mean_new[..., None]], -1)
    return CommitPosterior(normalise(log_weight), mean_old, mean_new)


def visit_gain(posterior: CommitPosterior, n_runs: int = 1) -> FloatArray:
    """Expected information in nats about the change from `n_runs` more runs of version v, shape [..., N+1].

    H(outcome) - E H(outcome | hypothesis), the outcome being the number of failures at the mean rates; exact for one
    run. Version v is new under the hypotheses below v, so that prefix sums give every version in O(N).
    """
    w, old, new = posterior.weight, posterior.mean_old, posterior.mean_new
    if n_runs == 1:
        predicted = _by_version(w * new, w * old)
        return np.maximum(
            binary_entropy(predicted) - _by_version(w * binary_entropy(new), w * binary_entropy(old)), 0.0
        )
    from scipy.special import comb

    gain = np.zeros_like(w)
    for fails in range(n_runs + 1):
        chance_new, chance_old = (comb(n_runs, fails) * p**fails * (1 - p) ** (n_runs - fails) for p in (new, old))
        predicted = np.maximum(_by_version(w * chance_new, w * chance_old), 1e-300)
        known = _by_version(*(w * q * np.log(np.maximum(q, 1e-300)) for q in (chance_new, chance_old)))
        gain += known - predicted * np.log(predicted)
    return np.maximum(gain, 0.0)


def _by_version(when_new: FloatArray, when_old: FloatArray) -> FloatArray:
    """Sum over hypotheses c < v of `when_new` plus over c >= v of `when_old`, for v = 0..N."""
    new, old = np.cumsum(when_new, -1), np.cumsum(when_old, -1)
    return old[..., -1:] - old + when_old + new - when_new


def best_visit(
    posterior: CommitPosterior, testable: ArrayLike, built: ArrayLike, build_cost: float = 0.0
) -> tuple[IntArray, IntArray]:
    """The version with the most information per cost, and the number of runs for which it is best; shapes [...].

    The cost of n runs is n + build_cost if the version is not built. Without a build cost one run is always best.
    """
    testable, built = np.asarray(testable, bool), np.asarray(built, bool)
    lengths = _PLANNED_RUNS if build_cost > 0 else (1,)
    score = np.stack([visit_gain(posterior, n) / (n + build_cost * ~built) for n in lengths])
    score = np.where(testable, score, -1.0)
    version = score.max(0).argmax(-1)
    at_version = np.take_along_axis(
        score, np.broadcast_to(version[None, ..., None], (len(lengths), *version.shape, 1)), -1
    )
    return version, np.asarray(lengths)[at_version[..., 0].argmax(0)]


def highest_density(weight: ArrayLike, level: float = 0.9) -> tuple[int, ...]:
    """The smallest set of indices whose weights [N] sum to at least `level` of the whole, in order."""
    w = np.asarray(weight, float)
    if w.sum() <= 0:
        return ()
    order = np.argsort(-w, kind="stable")
    n = int(np.searchsorted(np.cumsum(w[order]) / w.sum(), level - 1e-12)) + 1
    return tuple(sorted(int(i) for i in order[:n]))


def prior_from_files(
    changed: Sequence[Collection[str]], relevant: Collection[str], share: float = 0.8
) -> tuple[float, ...]:
    """A prior over changes, of which those that touch a relevant file (or a file below a relevant folder) get `share`.

    All get something; if every change or none is relevant, the prior is flat. 0.8 is the share of facts 3a.
    """
    if not changed:
        raise ValueError("no changes: a prior needs at least one")
    folders = tuple(path.rstrip("/") + "/" for path in relevant)
    touched = np.array([any(f in relevant or f.startswith(folders) for f in files) for files in changed])
    n, hits = len(changed), int(touched.sum())
    if hits in (0, n):
        return (1.0 / n,) * n
    return tuple(float(x) for x in np.where(touched, share / hits, 0.0) + (1 - share) / n)


def next_choice(found: CommitEvidence, plan: CommitPlan) -> CommitChoice:
    """The next step of a search, recomputed from all evidence: a pure function, equal inputs give equal answers."""
    runs, fails = np.array(found.runs), np.array(found.fails)
    testable = np.array(found.testable)
    n_changes = len(runs) - 1
    prior = np.ones(n_changes) if plan.prior is None else np.array(plan.prior)
    if len(prior) != n_changes:
        raise ValueError(f"the prior has {len(prior)} entries, the range has {n_changes} changes")
    # Changes between two neighbouring versions that say something cannot be told apart: they are one hypothesis.
    kept = np.flatnonzero(testable | (runs > 0))
    grouped = np.add.reduceat(prior, kept[:-1])
    posterior = commit_posterior(
        runs[kept], fails[kept], grouped, plan.no_change, plan.grid or _fine_grid(int(runs.sum()))
    )
    group_of = np.searchsorted(kept, np.arange(n_changes), side="right") - 1
    probability = posterior.weight[group_of] * prior / grouped[group_of]
    no_change = float(posterior.weight[-1])
    best = int(posterior.weight[:-1].argmax())
    old, new = _testable_around(testable, int(kept[best]), int(kept[best + 1]))
    suspects = tuple(range(old, new))
    mass = float(probability[old:new].sum())

    known = CommitChoice(
        CommitStep.COULD_NOT_TELL, tuple(map(float, probability)), no_change, suspects, highest_density(probability)
    )
    if no_change >= plan.stop:
        return replace(
            known,
            step=CommitStep.NO_CHANGE,
            reason=f"one failure rate explains all versions (probability {no_change:.3f})",
        )
    refuted = found.unconfirmed.count((old, new))
    if refuted >= _FAILED_CONFIRMATIONS:
        return replace(known, reason=f"{refuted} confirming A/Bs of versions {old} and {new} did not implicate")
    if mass >= 1 - (1 - plan.stop) / 4**refuted:
        return replace(known, step=CommitStep.CONFIRM, old=old, new=new)
    if found.runs_left is not None and found.runs_left < 1:
        return replace(known, reason="the budget of runs is spent")
    if not testable.any():
        return replace(known, reason="no version can be built and run")
    built = np.array(found.built)[kept]
    version, planned = best_visit(posterior, testable[kept], built, plan.build_cost)
    n_runs = min(int(planned), plan.most_runs_per_visit)
    if found.runs_left is not None:
        n_runs = min(n_runs, found.runs_left)
    return replace(known, step=CommitStep.VISIT, version=int(kept[int(version)]), n_runs=n_runs)


def _fine_grid(n_runs: int) -> RateGrid:
    """The default priors with steps below one standard error of a rate, so that long histories are not misfitted."""
    return rate_grid(size=min(max(14, math.isqrt(n_runs)), 120))


def _testable_around(testable: NDArray[np.bool_], old: int, new: int) -> tuple[int, int]:
    """The nearest testable versions at or before `old` and at or after `new`; the ends where there is none."""
    before, after = np.flatnonzero(testable[: old + 1]), np.flatnonzero(testable[new:])
    return (int(before[-1]) if before.size else 0), (new + int(after[0]) if after.size else len(testable) - 1)
