"""The exact spending region of one claim about two rates, on the lattice of failures after each block."""

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from service.stats.mixture import Prior, ratio_mixture
from service.stats.score import Floats

MOST_BLOCKS = 100
BUILD_POINTS = 60
NODES_PER_DEGREE = 100
TIE = 1e-9
STATES_AT_ONCE = 64


class Spending(StrEnum):
    """How the error rate is spent over the blocks."""

    POCOCK = "pocock"
    POWER = "power 1.5"
    OBRIEN_FLEMING = "obrien-fleming"


@dataclass(frozen=True, slots=True)
class Region:
    """States (high, low) after n blocks that reject H0 p_high <= ratio * p_low.

    `least[n - 1][low]` is the smallest number of high-arm failures that rejects beside `low` low-arm failures; a row
    ends where no number rejects. `sup_error` bounds the probability of ever rejecting, at every rate of the null.
    """

    blocks: int
    alpha: float
    ratio: float
    least: tuple[tuple[int, ...], ...]
    sup_error: float

    def rejects(self, n: int, high: int, low: int) -> bool:
        """Whether `high` and `low` failures in n blocks reject; ValueError outside 1..blocks or for counts above n."""
        if not 1 <= n <= self.blocks:
            raise ValueError(f"{n} blocks are outside the boundary's 1 to {self.blocks}")
        if not (0 <= high <= n and 0 <= low <= n):
            raise ValueError(f"{high} and {low} failures do not fit into {n} blocks")
        row = self.least[n - 1]
        return low < len(row) and high >= row[low]

    def mask(self, n: int) -> npt.NDArray[np.bool_]:
        """Rejecting states after n blocks, shape [n + 1, n + 1] indexed by (high, low)."""
        row = np.full(n + 1, n + 1)
        row[: len(self.least[n - 1])] = self.least[n - 1]
        return np.arange(n + 1)[:, None] >= row


def spent(spending: Spending, alpha: float, share: float) -> float:
    """Error that may be spent once `share` of the blocks are complete.

    POCOCK: alpha ln(1 + (e - 1) share). POWER: alpha share^1.5. OBRIEN_FLEMING: 2 - 2 Phi(z_{alpha/2} / sqrt(share)).
    Source: Lan and DeMets 1983, Biometrika 70:659-663; Kim and DeMets 1987, Biometrika 74:149-154.
    """
    match spending:
        case Spending.POCOCK:
            return alpha * math.log(1 + (math.e - 1) * share)
        case Spending.POWER:
            return alpha * math.pow(share, 1.5)
        case Spending.OBRIEN_FLEMING:
            normal = NormalDist()
            return 2 * normal.cdf(normal.inv_cdf(alpha / 2) / math.sqrt(share))


@lru_cache(maxsize=512)
def build_region(blocks: int, alpha: float, ratio: float, prior: Prior, spending: Spending) -> Region:
    """The rejection region of H0 p_high <= ratio * p_low, for 1 to 100 blocks.

    After each block, states are added in decreasing order of the mixture likelihood ratio, whole tie groups at a time
    and only while it favours the alternative, as long as the probability spent so far stays within the schedule at 60
    arcsine-spaced rates on the line p_high = ratio * p_low.

    Guarantee: the probability of ever rejecting is at most `sup_error` <= alpha at EVERY pair of rates of the null,
    when runs are independent and of constant rate within an arm. It holds off the grid too: on the line the
    probability is a polynomial of degree 2 * blocks, so its maximum is at most its maximum on M Chebyshev nodes
    divided by cos(pi * blocks / M) (Ehlich and Zeller 1964, Mathematische Zeitschrift 86:41-44); inside the null it is
    smaller than on the line, because regions are closed under more high-arm and fewer low-arm failures. A build that
    overshoots between its 60 points is repeated with a smaller schedule.

    Source: Lan and DeMets 1983, Biometrika 70:659-663, for the spending; Grünwald, de Heide, Koolen 2024 for the order.
    """
    if not 1 <= blocks <= MOST_BLOCKS:
        raise ValueError(f"{blocks} blocks: an exact boundary has 1 to {MOST_BLOCKS}; beyond that use e-values")
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha {alpha} must lie between 0 and 1, for example 0.025")
    tables = [ratio_mixture(prior, ratio).log_e_table(n) for n in range(1, blocks + 1)]
    schedule = [spent(spending, alpha, n / blocks) for n in range(1, blocks + 1)]
    rates = (1 - np.cos(np.pi * np.arange(1, BUILD_POINTS + 1) / (BUILD_POINTS + 1))) / 2
    scale = 1.0
    while True:
        least, crossed = spend(tables, [scale * limit for limit in schedule], ratio, rates)
        sup_error = sup_probability(crossed, ratio)
        if sup_error <= alpha:
            return Region(blocks, alpha, ratio, least, sup_error)
        scale *= min(alpha / sup_error, 0.9995)


def spend(
    tables: list[Floats], schedule: list[float], ratio: float, low_rates: Floats
) -> tuple[tuple[tuple[int, ...], ...], Floats]:
    """Rows of `Region.least`, and the number of paths to each final state that were ever rejected.

    `tables[n - 1]` orders the states after n blocks, `schedule[n - 1]` is the error that may be spent by then at the
    null rates (ratio * p, p), p in `low_rates`. The second value, [blocks + 1, blocks + 1], gives the probability of
    rejecting at any rates: weigh each path to (high, low) by its probability.

    Source: Lan and DeMets 1983, Biometrika 70:659-663. Assumes independent runs, one rate per arm. Guarantee: within
    the schedule at `low_rates` after every block; between them see `sup_probability`.
    """
    alive, crossed = np.ones((1, 1)), np.zeros((1, 1))
    total = np.zeros(len(low_rates))
    least = []
    for n, (table, limit) in enumerate(zip(tables, schedule, strict=True), start=1):
        alive, crossed = add_block(alive), add_block(crossed)
        cutoff, total = _cutoff(
            alive, table, limit, total, path_weights(n, ratio * low_rates), path_weights(n, low_rates)
        )
        is_rejected = table > cutoff
        crossed += np.where(is_rejected, alive, 0.0)
        alive[is_rejected] = 0.0
        least.append(_smallest(is_rejected))
    return tuple(least), crossed


def _cutoff(
    alive: Floats, table: Floats, limit: float, total: Floats, high: Floats, low: Floats
) -> tuple[float, Floats]:
    """Log e-value above which states are rejected at this look, and the probability spent afterwards, per rate."""
    states = np.flatnonzero((alive > 0.0) & (table > 0.0))
    states = states[np.argsort(-table.ravel()[states], kind="stable")]
    log_e = table.ravel()[states]
    high_failures, low_failures = np.divmod(states, alive.shape[1])
    paths = alive.ravel()[states]
    before = [total[:, None]]
    for start in range(0, len(states), STATES_AT_ONCE):
        chunk = slice(start, start + STATES_AT_ONCE)
        added = paths[chunk] * high[:, high_failures[chunk]] * low[:, low_failures[chunk]]
        running = before[-1][:, -1:] + np.cumsum(added, axis=1)
        before.append(running)
        # Relative: an absolute tolerance would let a tiny alpha be overspent at every look.
        is_over = np.max(running, axis=0) > limit * (1 + 1e-12)
        if np.any(is_over):
            first_over = start + int(np.argmax(is_over))
            cutoff = float(log_e[first_over]) + TIE
            accepted = int(np.sum(log_e > cutoff))
            return cutoff, np.concatenate(before, axis=1)[:, accepted]
    return 0.0, before[-1][:, -1]


def _smallest(is_rejected: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    """Smallest rejecting high count of each low count, up to the first low count without one."""
    assert np.all(np.diff(is_rejected.astype(np.int8), axis=0) >= 0)
    assert np.all(np.diff(is_rejected.astype(np.int8), axis=1) <= 0)
    has_any = is_rejected[-1]
    return tuple(int(value) for value in np.argmax(is_rejected, axis=0)[has_any])


def add_block(mass: Floats, p_high: float | None = None, p_low: float | None = None) -> Floats:
    """The lattice one block later: [n + 1, n + 1] -> [n + 2, n + 2], as path counts or, with rates, probabilities.

    Each state passes its mass to its four successors; the runs of a block are independent given the rates.
    """
    fail_high, clean_high = (1.0, 1.0) if p_high is None else (p_high, 1.0 - p_high)
    fail_low, clean_low = (1.0, 1.0) if p_low is None else (p_low, 1.0 - p_low)
    size = len(mass) + 1
    after = np.zeros((size, size))
    after[:-1, :-1] += clean_high * clean_low * mass
    after[1:, :-1] += fail_high * clean_low * mass
    after[:-1, 1:] += clean_high * fail_low * mass
    after[1:, 1:] += fail_high * fail_low * mass
    return after


def path_weights(n: int, rates: Floats) -> Floats:
    """Probability of one sequence of n runs with k failures, shape [rates, n + 1].

    p^k (1 - p)^(n - k) for k = 0..n; runs are independent at one rate.
    """
    k = np.arange(n + 1)
    weights: Floats = rates[:, None] ** k * (1.0 - rates[:, None]) ** (n - k)
    return weights


def sup_probability(crossed: Floats, ratio: float) -> float:
    """Upper bound, over p in [0, 1], of the probability of `crossed` paths at p_low = p and p_high = ratio * p.

    The largest value on M = 200 * blocks Chebyshev nodes / cos(pi * blocks / M). Source: Ehlich and Zeller 1964,
    Mathematische Zeitschrift 86:41-44. Assumes independent runs, one rate per arm. Guarantee: an upper bound at every
    p.
    """
    blocks = len(crossed) - 1
    nodes = NODES_PER_DEGREE * 2 * blocks
    p = (1 - np.cos(np.pi * (np.arange(nodes) + 0.5) / nodes)) / 2
    probability = np.sum((path_weights(blocks, ratio * p) @ crossed) * path_weights(blocks, p), axis=1)
    return float(np.max(probability)) / math.cos(math.pi * blocks / nodes)
