"""Two unknown failure rates, old < new, on a grid: the likelihood that the commit and order searches share.

A search never knows the failure rate with the cause (new) or without it (old). Each hypothesis splits the runs into two
groups; its evidence is the likelihood of both groups averaged over a grid of rate pairs. With equal weights on midpoint
quantiles this is a quadrature of independent Beta priors, cut to `new > old + 0.02`: the direction is known beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

_UNDERFLOW = 1e-200


@dataclass(frozen=True, slots=True, eq=False)
class RateGrid:
    """Rates `old` [I] and `new` [J], and the prior `weight` [I, J] of each pair, which sums to 1."""

    old: FloatArray
    new: FloatArray
    weight: FloatArray

    def __post_init__(self) -> None:
        if self.weight.shape != (self.old.size, self.new.size):
            raise ValueError(f"weight has shape {self.weight.shape}, expected {(self.old.size, self.new.size)}")
        if not np.isclose(self.weight.sum(), 1.0) or (self.weight < 0).any():
            raise ValueError(f"weights must be non-negative and sum to 1, got the sum {self.weight.sum()!r}")
        for name, rates in (("old", self.old), ("new", self.new)):
            if rates.size == 0 or rates.min() <= 0 or rates.max() >= 1:
                raise ValueError(f"{name} rates must lie strictly between 0 and 1, got {rates!r}")


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Per hypothesis: the log marginal likelihood and the posterior means of both rates; shapes follow the counts."""

    log_likelihood: FloatArray
    mean_old: FloatArray
    mean_new: FloatArray


@lru_cache(maxsize=32)
def rate_grid(
    old: tuple[float, float] = (0.5, 3.0),
    new: tuple[float, float] = (1.0, 1.0),
    size: int = 14,
    clip: float = 2e-3,
    least_rise: float | None = 0.02,
) -> RateGrid:
    """The grid of `size` midpoint quantiles of Beta(*old) times as many of Beta(*new), clipped to [clip, 1 - clip].

    Pairs with `new <= old + least_rise` have no weight; `least_rise=None` keeps all pairs. The defaults assume that the
    old version mostly passes and say nothing about the new one; the direction comes from the A/B before the search.

    Source: none, a midpoint quadrature; as in the module. Guarantee: none, a prior.
    """
    from scipy.stats import beta

    quantiles = (np.arange(size) + 0.5) / size
    p_old, p_new = (np.clip(beta.ppf(quantiles, *shape), clip, 1 - clip) for shape in (old, new))
    allowed = np.ones((size, size)) if least_rise is None else (p_new > p_old[:, None] + least_rise).astype(float)
    if not allowed.any():
        raise ValueError(f"no rate pair of Beta{old} x Beta{new} rises by {least_rise}")
    return RateGrid(p_old, p_new, allowed / allowed.sum())


def evidence(
    grid: RateGrid,
    old_fails: ArrayLike,
    old_passes: ArrayLike,
    new_fails: ArrayLike,
    new_passes: ArrayLike,
) -> Evidence:
    """The marginal likelihood of each hypothesis and its mean rates; the four counts broadcast, any shape.

    log sum_ij w_ij old_i^of (1-old_i)^op new_j^nf (1-new_j)^np: the sum factors into two tables and one matrix product.
    The binomial coefficients are left out: they are the same for every hypothesis.

    Source: Bayes' theorem on the grid. Assumes independent runs at one rate per group. Guarantee: none beyond the
    prior, no error rate.
    """
    of, op, nf, np_ = np.broadcast_arrays(
        *(np.asarray(x, float) for x in (old_fails, old_passes, new_fails, new_passes))
    )
    log_old = of[..., None] * np.log(grid.old) + op[..., None] * np.log1p(-grid.old)
    log_new = nf[..., None] * np.log(grid.new) + np_[..., None] * np.log1p(-grid.new)
    top_old, top_new = log_old.max(-1, keepdims=True), log_new.max(-1, keepdims=True)
    table_old, table_new = np.exp(log_old - top_old), np.exp(log_new - top_new)
    mixed = table_old @ grid.weight
    total = (mixed * table_new).sum(-1)
    lost = total < _UNDERFLOW
    total = np.where(lost, 1.0, total)
    log_likelihood = top_old[..., 0] + top_new[..., 0] + np.log(total)
    mean_old = (((table_old * grid.old) @ grid.weight) * table_new).sum(-1) / total
    mean_new = (mixed * (table_new * grid.new)).sum(-1) / total
    if lost.any():
        # The best old and the best new rate form a pair of no weight: only the joint maximum keeps the digits.
        with np.errstate(divide="ignore"):
            joint = log_old[lost][:, :, None] + log_new[lost][:, None, :] + np.log(grid.weight)
        top = joint.max((1, 2), keepdims=True)
        table = np.exp(joint - top)
        sums = table.sum((1, 2))
        log_likelihood[lost] = top[:, 0, 0] + np.log(sums)
        mean_old[lost] = (table.sum(2) @ grid.old) / sums
        mean_new[lost] = (table.sum(1) @ grid.new) / sums
    return Evidence(log_likelihood, mean_old, mean_new)


def one_rate(grid: RateGrid) -> RateGrid:
    """The grid of a single rate, `new`: half the time from the old and half from the new marginal of `grid`."""
    weight = np.concatenate([grid.weight.sum(1), grid.weight.sum(0)]) / 2
    return RateGrid(np.array([0.5]), np.concatenate([grid.old, grid.new]), weight[None])


def normalise(log_weights: FloatArray) -> FloatArray:
    """Weights that sum to 1 over the last axis, from log weights of any scale."""
    weights: FloatArray = np.exp(log_weights - log_weights.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights


def binary_entropy(p: ArrayLike) -> FloatArray:
    """-p ln p - (1-p) ln (1-p) in nats, 0 at 0 and 1.

    Source: Shannon 1948, Bell System Technical Journal 27:379-423.
    """
    chance: FloatArray = np.minimum(np.maximum(p, 1e-300), 1.0)
    rest: FloatArray = np.maximum(1.0 - chance, 1e-300)
    entropy: FloatArray = -(chance * np.log(chance) + rest * np.log(rest))
    return entropy
