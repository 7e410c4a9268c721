"""Operating characteristics of an A/B design: what it will say, and at what cost, at given failure rates.

The shipped design (30 blocks, alpha 0.025, exoneration 0.05, margin 0.5), exact; tests hold it to these figures:

    rates       implicated  worsened  exonerated  undecided  executions
    0.65 / 0.1       0.988     0.000       0.000      0.012        21.9
    0.5  / 0         0.999     0.000       0.000      0.001        19.7
    0.3  / 0         0.939     0.000       0.000      0.061        31.8
    0.2  / 0         0.679     0.000       0.000      0.321        39.4
    0.3  / 0.05      0.631     0.000       0.000      0.369        35.6
    0.65 / 0.35      0.481     0.000       0.069      0.450        41.0
    0.65 / 0.65      0.016     0.016       0.788      0.180        40.4
    0.3  / 0.3       0.024     0.024       0.013      0.940        33.3
    0.05 / 0.05      0.004     0.004       0.000      0.992        28.9
    0    / 0         0.000     0.000       0.000      1.000        20.0
    0.3  / 0.9       0.000     0.993       0.003      0.004        20.4
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from service.stats.futility import claim_masks, futile_mask
from service.stats.score import Floats
from service.stats.sequential import Boundary
from service.stats.spending import add_block

NEITHER, EXPLAINS, MULTIPLIES, BOTH = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class OperatingCharacteristics:
    """Probabilities of how an experiment ends, which sum to 1 but for `never_failed`, and its expected length."""

    implicated: float
    worsened: float
    exonerated: float
    futile: float
    exhausted: float
    never_failed: float
    expected_blocks: float

    @property
    def undecided(self) -> float:
        """Probability of ending without a claim; `never_failed` is the part of it without a failure in any arm."""
        return self.futile + self.exhausted

    @property
    def expected_executions(self) -> float:
        """Expected runs of both arms together."""
        return 2 * self.expected_blocks


def operating_characteristics(
    boundary: Boundary, p_control: float, p_treated: float, *, stops_for_futility: bool = True
) -> OperatingCharacteristics:
    """How an experiment with this boundary ends at the given failure rates. Exact: a recursion over all counts.

    Assumes independent runs with one rate per arm and no outcome that is neither a match nor clean. ValueError for a
    rate outside [0, 1].
    """
    for rate in (p_control, p_treated):
        if not 0.0 <= rate <= 1.0:
            raise ValueError(f"failure rate {rate} must lie in [0, 1]")
    ends = dict.fromkeys(("implicated", "worsened", "exonerated", "futile", "exhausted", "never_failed"), 0.0)
    blocks = 0.0
    alive: dict[int, Floats] = {NEITHER: np.ones((1, 1))}
    for n in range(1, boundary.blocks + 1):
        implicated, worsened, explains, multiplies = claim_masks(boundary, n)
        rejected = explains.astype(np.int64) * EXPLAINS + multiplies.astype(np.int64) * MULTIPLIES
        hopeless = futile_mask(boundary, n) if stops_for_futility else np.zeros_like(implicated)
        arrived = _arrivals(alive, rejected, p_control, p_treated)
        alive = {}
        for flag, mass in arrived.items():
            exonerated = np.full_like(implicated, flag == BOTH) & ~implicated & ~worsened
            futile = hopeless & ~implicated & ~worsened & ~exonerated
            is_last = n == boundary.blocks
            for name, is_end in (
                ("implicated", implicated),
                ("worsened", worsened & ~implicated),
                ("exonerated", exonerated),
                ("futile", futile),
            ):
                ends[name] += float(mass[is_end].sum())
            stopped = implicated | worsened | exonerated | futile
            remaining = np.where(stopped, 0.0, mass)
            blocks += n * float(mass[stopped].sum())
            if futile[0, 0]:
                ends["never_failed"] += float(mass[0, 0])
            if is_last:
                ends["exhausted"] += float(remaining.sum())
                ends["never_failed"] += float(remaining[0, 0])
                blocks += n * float(remaining.sum())
            alive[flag] = remaining
    return OperatingCharacteristics(**ends, expected_blocks=blocks)


def _arrivals(
    alive: dict[int, Floats], rejected: npt.NDArray[np.int64], p_control: float, p_treated: float
) -> dict[int, Floats]:
    """Mass on arrival at the next look, by the exoneration nulls rejected so far."""
    arrived: dict[int, Floats] = {}
    for flag, mass in alive.items():
        after = add_block(mass, p_control, p_treated)
        for now in (NEITHER, EXPLAINS, MULTIPLIES, BOTH):
            part = np.where(rejected == now, after, 0.0)
            if part.any():
                arrived[flag | now] = arrived.get(flag | now, 0.0) + part
    return arrived
