"""When going on is hopeless: the predictive probability that an experiment still reaches a claim."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from service.stats.score import Floats
from service.stats.sequential import FUTILITY_FROM_BLOCK, FUTILITY_LIMIT, Boundary


def decision_probability(boundary: Boundary, n: int, a: int, b: int) -> float:
    """Predictive probability that some claim is reached within the boundary, given a and b failures in n blocks.

    Every future run of an arm fails with the mean of its Beta(.5, .5) posterior, which is updated on the way (backward
    induction over all paths). 1 where a claim holds already. An exoneration counts when both nulls are rejected at
    one look. ValueError for counts outside the boundary.

    Source: Spiegelhalter, Freedman and Blackburn 1986, Controlled Clinical Trials 7:8-17. Assumes independent runs, one
    rate per arm. Guarantee: none, an estimate.
    """
    if not (1 <= n <= boundary.blocks and 0 <= a <= n and 0 <= b <= n):
        raise ValueError(f"{a} and {b} failures in {n} blocks are outside the boundary's 1 to {boundary.blocks}")
    return float(_decision_tables(boundary)[n - 1][a, b])


def is_futile(boundary: Boundary, n: int, a: int, b: int) -> bool:
    """Whether n >= 6 blocks are complete, more are to come, and the predictive probability of any claim is below 0.05.

    False after the last block, where there is nothing left to save. Non-binding: stopping for futility only lowers the
    error rates of the claims.

    Source: Spiegelhalter, Freedman and Blackburn 1986, as in `decision_probability`. Guarantee: the boundary's levels
    stay; a claim given up is lost power.
    """
    has_hope = decision_probability(boundary, n, a, b) >= FUTILITY_LIMIT
    return not has_hope and FUTILITY_FROM_BLOCK <= n < boundary.blocks


def futile_mask(boundary: Boundary, n: int) -> npt.NDArray[np.bool_]:
    """States [n + 1, n + 1] by (a, b) in which `is_futile` holds."""
    table = _decision_tables(boundary)[n - 1]
    return (table < FUTILITY_LIMIT) & (FUTILITY_FROM_BLOCK <= n < boundary.blocks)


def claim_masks(boundary: Boundary, n: int) -> tuple[npt.NDArray[np.bool_], ...]:
    """States [n + 1, n + 1] by (a, b) that imply: implicated, worsened, "explains" rejected, "multiplies" rejected."""
    more, near = boundary.more.mask(n), boundary.near.mask(n)
    return more, more.T, near.T, near


@lru_cache(maxsize=64)
def _decision_tables(boundary: Boundary) -> tuple[Floats, ...]:
    """Predictive probability of a claim after 1..blocks blocks, each [n + 1, n + 1] by (a, b)."""
    tables: list[Floats] = []
    later = np.zeros((boundary.blocks + 2, boundary.blocks + 2))
    for n in range(boundary.blocks, 0, -1):
        implicated, worsened, explains, multiplies = claim_masks(boundary, n)
        fail = (np.arange(n + 1) + 0.5) / (n + 1)
        a_fail, b_fail = fail[:, None], fail[None, :]
        expected = (
            (1 - a_fail) * (1 - b_fail) * later[:-1, :-1]
            + a_fail * (1 - b_fail) * later[1:, :-1]
            + (1 - a_fail) * b_fail * later[:-1, 1:]
            + a_fail * b_fail * later[1:, 1:]
        )
        later = np.where(implicated | worsened | (explains & multiplies), 1.0, expected)
        tables.append(later)
    return tuple(reversed(tables))
