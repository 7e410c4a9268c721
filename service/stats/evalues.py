"""E-values: evidence that stays valid at any stopping time, under any way of looking, adding and pooling.

Betting e-values assume only that, given the past, a run of a block fails with the probabilities of the null; they hold
under drift and under any dependence between the runs of a block. A claim at level alpha needs an e-value of 1 / alpha.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from service.stats.mixture import beta_alternatives, difference_mixture
from service.stats.score import Floats

STAKES = np.array([0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97])


@dataclass(frozen=True, slots=True)
class PairedCounts:
    """Blocks by which of their two runs failed."""

    control_only: int
    treated_only: int
    both: int
    neither: int

    def __post_init__(self) -> None:
        if min(self.control_only, self.treated_only, self.both, self.neither) < 0:
            raise ValueError(f"negative count in {self}")

    @property
    def concordant(self) -> int:
        """Blocks whose runs agreed."""
        return self.both + self.neither

    def exchanged(self) -> "PairedCounts":
        """The same blocks with the arms exchanged."""
        return PairedCounts(self.treated_only, self.control_only, self.both, self.neither)


def log_e_control_worse(counts: PairedCounts, difference: float = 0.0) -> float:
    """Log betting e-value against H0 p_control - p_treated <= difference, -1 < difference < 1.

    Payoff of a block: y_control - y_treated - difference, at least -(1 + difference). Source: Waudby-Smith and Ramdas
    2024, JRSS B 86:1-27, mixture of constant bets.

    >>> round(math.exp(log_e_control_worse(PairedCounts(12, 1, 0, 7))), 1)
    88.1
    """
    _check_difference(difference)
    return _log_wealth(
        STAKES / (1 + difference),
        (counts.control_only, counts.concordant, counts.treated_only),
        (1 - difference, -difference, -1 - difference),
    )


def log_e_ratio(counts: PairedCounts, ratio: float) -> float:
    """Log betting e-value against H0 p_treated <= ratio * p_control, 0 < ratio <= 1.

    Payoff of a block: y_treated - ratio * y_control. It stays at 0 (an e-value of 1) while neither arm fails, so an arm
    that never fails can never exonerate.

    ln of the mean over STAKES / ratio of the product of 1 + stake * payoff. Source: Waudby-Smith and Ramdas 2024,
    JRSS B 86:1-27, mixture of constant bets. Assumes only that the null holds in each block given the past. Guarantee:
    anytime, it ever reaches ln(1 / alpha) with probability at most alpha.

    >>> round(math.exp(log_e_ratio(PairedCounts(0, 0, 13, 7), 0.5)), 1)
    1343.6
    """
    if not 0.0 < ratio <= 1.0:
        raise ValueError(f"ratio {ratio} must lie in (0, 1]")
    return _log_wealth(
        STAKES / ratio,
        (counts.control_only, counts.treated_only, counts.both),
        (-ratio, 1.0, 1.0 - ratio),
    )


def log_e_rate_above(failures: int, runs: int, rate: float) -> float:
    """Log betting e-value against H0 "the failure rate is at most `rate`", 0 < rate < 1. Payoff y - rate.

    Source, form and guarantee (anytime) as in `log_e_ratio`. Assumes that given the past each run fails with a
    probability of at most `rate`.
    """
    _check_rate(failures, runs, rate)
    return _log_wealth(STAKES / rate, (failures, runs - failures), (1 - rate, -rate))


def log_e_rate_below(failures: int, runs: int, rate: float) -> float:
    """Log betting e-value against H0 "the failure rate is at least `rate`", 0 < rate < 1. Payoff rate - y.

    Source, form and guarantee (anytime) as in `log_e_ratio`. Assumes that given the past each run fails with a
    probability of at least `rate`.

    >>> round(math.exp(log_e_rate_below(0, 6, 0.43)), 2)
    9.88
    """
    _check_rate(failures, runs, rate)
    return _log_wealth(STAKES / (1 - rate), (failures, runs - failures), (rate - 1, rate))


def betting_interval(counts: PairedCounts, confidence: float = 0.95) -> tuple[float, float]:
    """Anytime limits of p_control - p_treated: differences that neither one-sided bet rejects, on a grid of 0.005.

    Guarantee: covers at all looks together with probability at least `confidence`, under drift and under dependence
    inside a block.

    Source: Waudby-Smith and Ramdas 2024, as in `log_e_control_worse`.
    """
    grid = np.linspace(-0.995, 0.995, 399)
    limit = math.log(2 / (1 - confidence))
    exchanged = counts.exchanged()
    from_below = [log_e_control_worse(counts, float(d)) < limit for d in grid]
    from_above = [log_e_control_worse(exchanged, float(-d)) < limit for d in grid]
    return _accepted_range(grid, np.array(from_below), np.array(from_above))


def mixture_interval(a: int, b: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Anytime limits of p_a - p_b from a and b failures in n blocks, on a grid of 0.01.

    Inverts mixture likelihood ratios with Beta(.6, .6) alternatives for both arms. Guarantee: covers at all looks
    together with probability at least `confidence` when runs are independent with one rate per arm; 1.5 to 2 times as
    wide as a fixed-n interval.

    Source: Grünwald, de Heide, Koolen 2024, as in `mixture.ratio_mixture`.
    """
    grid = np.linspace(-0.98, 0.98, 197)
    limit = math.log(2 / (1 - confidence))
    high, low, weight = beta_alternatives(0.6, 0.6, 0.6, 0.6, 24)

    def is_accepted(first: int, second: int, difference: float) -> bool:
        return float(difference_mixture(high, low, weight, difference).log_e(n, first, second)) < limit

    from_below = [is_accepted(a, b, float(d)) for d in grid]
    from_above = [is_accepted(b, a, float(-d)) for d in grid]
    return _accepted_range(grid, np.array(from_below), np.array(from_above))


def e_holm(log_e: Sequence[float] | Floats, alpha: float) -> npt.NDArray[np.bool_]:
    """Rejections [K] with family-wise error at most alpha under any dependence between the e-values.

    The i-th largest must reach (K - i + 1) / alpha, in order, up to the first that fails. Source: Holm 1979 applied to
    p = 1 / e (Vovk and Wang 2021, Annals of Statistics 49:1736-1754).
    """
    values = np.asarray(log_e, dtype=np.float64)
    order = np.argsort(-values, kind="stable")
    needed = np.log(np.arange(len(values), 0, -1)) - math.log(alpha)
    is_rejected = np.zeros(len(values), dtype=np.bool_)
    is_rejected[order] = np.logical_and.accumulate(values[order] >= needed)
    return is_rejected


def e_bh(log_e: Sequence[float] | Floats, alpha: float) -> npt.NDArray[np.bool_]:
    """Rejections [K] with false discovery rate at most alpha under any dependence between the e-values.

    All up to the largest k whose k-th largest e-value reaches K / (alpha k). Source: Wang and Ramdas 2022, JRSS B
    84:822-852.
    """
    values = np.asarray(log_e, dtype=np.float64)
    if len(values) == 0:
        return np.zeros(0, dtype=np.bool_)
    ordered = np.sort(values)[::-1]
    reaches = np.flatnonzero(ordered >= np.log(len(values) / (alpha * np.arange(1, len(values) + 1))))
    if len(reaches) == 0:
        return np.zeros(len(values), dtype=np.bool_)
    is_rejected: npt.NDArray[np.bool_] = values >= ordered[reaches[-1]]
    return is_rejected


def _log_wealth(stakes: Floats, counts: tuple[int, ...], payoffs: tuple[float, ...]) -> float:
    """Log of the mean, over the stakes, of the product over all blocks of 1 + stake * payoff."""
    growth = np.zeros(len(stakes))
    for count, payoff in zip(counts, payoffs, strict=True):
        growth += count * np.log1p(stakes * payoff)
    largest = float(np.max(growth))
    return largest + math.log(float(np.mean(np.exp(growth - largest))))


def _accepted_range(
    grid: Floats, from_below: npt.NDArray[np.bool_], from_above: npt.NDArray[np.bool_]
) -> tuple[float, float]:
    """First and last grid point accepted; a side that is accepted to the end of the grid goes to -1 or 1."""
    lower = -1.0 if from_below[0] else float(grid[np.argmax(from_below)])
    upper = 1.0 if from_above[-1] else float(grid[len(grid) - 1 - np.argmax(from_above[::-1])])
    return lower, upper


def _check_difference(difference: float) -> None:
    if not -1.0 < difference < 1.0:
        raise ValueError(f"difference {difference} must lie between -1 and 1")


def _check_rate(failures: int, runs: int, rate: float) -> None:
    if not 0 <= failures <= runs:
        raise ValueError(f"{failures}/{runs} is not a count of failures: it needs 0 <= failures <= runs")
    if not 0.0 < rate < 1.0:
        raise ValueError(f"failure rate {rate} must lie between 0 and 1")
