"""Executions of an A/B until its verdict, exact: the sequential boundary beside what else could decide it."""

import math
from dataclasses import dataclass

import numpy as np

from service.stats.compare import fisher_greater_table
from service.stats.mixture import Prior, ratio_mixture
from service.stats.operating import operating_characteristics
from service.stats.power import fixed_runs_per_arm, smallest_blocks
from service.stats.sequential import build_boundary
from service.stats.spending import add_block

PAIRS = ((0.65, 0.10), (0.20, 0.0), (0.50, 0.0), (0.30, 0.05), (0.65, 0.35))
ALPHA, POWER = 0.05, 0.9


@dataclass(frozen=True, slots=True)
class TwoArms:
    """One rate pair: expected executions (both arms) of each way to decide at one-sided 0.05 and power 0.9."""

    rates: tuple[float, float]
    oracle: float
    blocks: int
    sequential: float
    fisher: int
    boschloo: int
    e_value: float
    e_value_blocks: int


def oracle_bound(p_control: float, p_treated: float) -> float:
    """Wald's expected executions of the sequential test that knows both rates, null at their mean (facts 2.1)."""
    null = (p_control + p_treated) / 2

    def divergence(p: float) -> float:
        return sum(q * math.log(q / r) for q, r in ((p, null), (1 - p, 1 - null)) if q > 0)

    beta = 1 - POWER
    drift = (1 - beta) * math.log((1 - beta) / ALPHA) + beta * math.log(beta / (1 - ALPHA))
    return 2 * drift / (divergence(p_control) + divergence(p_treated))


def e_value(p_control: float, p_treated: float) -> tuple[float, int]:
    """Expected executions and length of the mixture e-value at 1/alpha, cut at the length that has the power."""
    mixture = ratio_mixture(Prior.CURE, 1.0)
    alive, crossed, blocks = np.ones((1, 1)), 0.0, 0.0
    for n in range(1, 400):
        alive = add_block(alive, p_control, p_treated)
        stops = mixture.log_e_table(n) >= math.log(1 / ALPHA)
        crossed += float(alive[stops].sum())
        blocks += n * float(alive[stops].sum())
        alive = np.where(stops, 0.0, alive)
        if crossed >= POWER:
            return 2 * (blocks + n * float(alive.sum())), n
    raise ValueError(f"no power {POWER} at {p_control}/{p_treated} within 400 blocks")


def two_arms(p_control: float, p_treated: float) -> TwoArms:
    """The row of one pair; ValueError when 100 blocks or 100 fixed runs do not suffice."""
    blocks = smallest_blocks(p_control, p_treated, ALPHA, POWER, stops_for_futility=False)
    fisher = fixed_runs_per_arm(p_control, p_treated, ALPHA, POWER, fisher_greater_table)
    boschloo = fixed_runs_per_arm(p_control, p_treated, ALPHA, POWER)
    if blocks is None or fisher is None or boschloo is None:
        raise ValueError(f"{p_control}/{p_treated} is out of reach of 100 runs per arm")
    ends = operating_characteristics(build_boundary(blocks, ALPHA), p_control, p_treated, stops_for_futility=False)
    expected, length = e_value(p_control, p_treated)
    return TwoArms(
        (p_control, p_treated),
        oracle_bound(p_control, p_treated),
        blocks,
        ends.expected_executions,
        2 * fisher,
        2 * boschloo,
        expected,
        length,
    )
