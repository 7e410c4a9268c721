"""Planning: how many blocks show what, and how many clean runs exclude what."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from service.stats.chan_zhang import binomial_pmf
from service.stats.compare import boschloo_greater_table
from service.stats.operating import operating_characteristics
from service.stats.score import Floats
from service.stats.sequential import build_boundary
from service.stats.spending import MOST_BLOCKS

TARGET_POWER = 0.9
FEWEST_PLANNED_BLOCKS = 16
MOST_FIXED_RUNS = 100


@dataclass(frozen=True, slots=True)
class Proposal:
    """How many blocks to plan; `power` is against a full cure, `is_settled_rarely` when it stays below 0.9."""

    blocks: int
    power: float
    expected_executions: float
    is_settled_rarely: bool


def clean_runs_to_exclude(rate: float, confidence: float = 0.95) -> int:
    """Smallest number of runs without a failure that excludes a failure rate of `rate` or more.

    ceil(ln(1 - confidence) / ln(1 - rate)), one-sided and exact. ValueError unless 0 < rate <= 1.

    Source: Clopper and Pearson 1934, Biometrika 26:404-413, the upper limit at 0/n. Assumes independent runs at one
    rate. Guarantee: at a rate of `rate` or more, so many clean runs have probability at most 1 - confidence, fixed n.

    >>> clean_runs_to_exclude(0.05)
    59
    """
    if not 0.0 < rate <= 1.0:
        raise ValueError(f"failure rate {rate} must lie in (0, 1]: a rate of 0 cannot be excluded by clean runs")
    if rate == 1.0:
        return 1
    return math.ceil(math.log(1 - confidence) / math.log1p(-rate))


def power_to_implicate(
    blocks: int, p_control: float, p_treated: float, alpha: float = 0.025, *, stops_for_futility: bool = True
) -> float:
    """Exact probability that an experiment of at most `blocks` blocks ends IMPLICATED at the given failure rates.

    Source: the recursion over all paths of `operating`. Assumes independent runs, one rate per arm.
    """
    boundary = build_boundary(blocks, alpha)
    return operating_characteristics(boundary, p_control, p_treated, stops_for_futility=stops_for_futility).implicated


def smallest_blocks(
    p_control: float,
    p_treated: float = 0.0,
    alpha: float = 0.025,
    power: float = TARGET_POWER,
    *,
    stops_for_futility: bool = True,
) -> int | None:
    """Fewest blocks with at least the given power to implicate a fall from p_control to p_treated; None above 100.

    By bisection. Power rises with the blocks but for dips between neighbours where the futility stop comes a block
    earlier (0.06 from 9 to 10 blocks at 0.5/0, 0.14 from 28 to 29 at 0.2/0, none above 30), so that the next larger
    number may miss the power, and a smaller one may have it too.

    Source and assumption as in `power_to_implicate`. Guarantee: the number returned has the power at these rates.
    """

    def reaches(blocks: int) -> bool:
        return power_to_implicate(blocks, p_control, p_treated, alpha, stops_for_futility=stops_for_futility) >= power

    if not reaches(MOST_BLOCKS):
        return None
    too_few, enough = 0, MOST_BLOCKS
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if reaches(middle) else (middle, enough)
    return enough


def propose_blocks(p_control: float, alpha: float = 0.025) -> Proposal:
    """The number of blocks to plan for a test that fails with rate p_control: power 0.9 against a full cure.

    Never below 16; 100 with `is_settled_rarely` when the rate is too low for a decision within an exact boundary.

    Source and assumption as in `power_to_implicate`. Guarantee: none when p_control is itself an estimate.
    """
    needed = smallest_blocks(p_control, 0.0, alpha)
    blocks = MOST_BLOCKS if needed is None else max(needed, FEWEST_PLANNED_BLOCKS)
    ends = operating_characteristics(build_boundary(blocks, alpha), p_control, 0.0)
    return Proposal(blocks, ends.implicated, ends.expected_executions, needed is None)


def largest_detectable_rate(
    blocks: int, p_control: float, alpha: float = 0.025, power: float = TARGET_POWER
) -> float | None:
    """Largest treated failure rate that is told apart from p_control with the given power, to 0.001.

    None when even a full cure is implicated less often.

    By bisection. Source and assumption as in `power_to_implicate`. Guarantee: the rate returned has the power.
    """

    def shows(p_treated: float) -> bool:
        return power_to_implicate(blocks, p_control, p_treated, alpha) >= power

    if not shows(0.0):
        return None
    shown, hidden = 0.0, p_control
    while hidden - shown > 0.001:
        middle = (shown + hidden) / 2
        shown, hidden = (middle, hidden) if shows(middle) else (shown, middle)
    return shown


def fixed_runs_per_arm(
    p_control: float,
    p_treated: float,
    alpha: float = 0.025,
    power: float = TARGET_POWER,
    p_values: Callable[[int, int], Floats] = boschloo_greater_table,
) -> int | None:
    """Fewest runs per arm of a fixed-size one-sided exact test with the given power; None above 100.

    `p_values(n, n)` gives the p-values of all tables, [n + 1, n + 1]: `boschloo_greater_table` or
    `fisher_greater_table`. What the sequential boundary is compared with.

    The power is the sum over tables with a p-value of at most alpha of their binomial probabilities. Source: Boschloo
    1970; Fisher 1935. Assumes independent runs, one rate per arm. Guarantee: the level of the test, at fixed n only.
    """
    for n in range(4, MOST_FIXED_RUNS + 1):
        first, second = binomial_pmf(n, np.array([p_control])), binomial_pmf(n, np.array([p_treated]))
        if float((first @ (p_values(n, n) <= alpha) @ second.T).item()) >= power:
            return n
    return None
