"""Experiments that went on beyond their boundary, or were pooled: all blocks judged by the e-value at 1 / alpha."""

import math
from dataclasses import dataclass

from service.stats.mixture import Prior, ratio_mixture
from service.stats.sequential import Boundary, Claim, Counts

FARTHEST_BLOCKS = 1000


@dataclass(frozen=True, slots=True)
class Evidence:
    """Log e-values of all blocks together, one per null, and the claim that they support."""

    log_e_implicated: float
    log_e_worsened: float
    log_e_explains: float
    log_e_multiplies: float
    claim: Claim | None


def judge(boundary: Boundary, counts: Counts) -> Evidence:
    """The claim supported by the total counts of one experiment, extended, or of several, pooled by adding `Counts`.

    IMPLICATED and WORSENED need 1 / alpha, EXONERATED 1 / alpha_exonerate against both of its nulls; `other` counts
    against each claim. Guarantee: each error rate of the boundary holds at any stopping time and after any number of
    extensions, for independent runs with one rate per arm. It costs a third to a half more runs than the boundary.
    Pooled experiments must be on the same victim and arms and must all be counted, not the promising ones.

    Source: the e-values of `mixture.ratio_mixture`.
    """
    n = counts.n
    if n == 0:
        return Evidence(0.0, 0.0, 0.0, 0.0, None)
    control_worse, treated_worse = counts.against_control_worse(), counts.against_treated_worse()
    return _judge(boundary, n, control_worse, treated_worse)


def blocks_to_decide(boundary: Boundary, counts: Counts) -> int | None:
    """How many more blocks would decide if the observed rates went on; None when 1,000 more would not.

    The smallest number after which the e-values of the counts, grown in proportion, support a claim: the rule by which
    an extension is judged. An estimate, not a guarantee; 0 when they do already. None without a block.

    Source: the e-values of `mixture.ratio_mixture`. Assumes that the rates stay as observed.
    """
    if counts.n == 0:
        return None
    control_worse, treated_worse = counts.against_control_worse(), counts.against_treated_worse()

    def decides(more: int) -> bool:
        n = counts.n + more
        grown = [tuple(value * n / counts.n for value in pair) for pair in (control_worse, treated_worse)]
        return _judge(boundary, n, *grown).claim is not None

    if not decides(FARTHEST_BLOCKS):
        return None
    below, enough = -1, FARTHEST_BLOCKS
    while enough - below > 1:
        middle = (below + enough) // 2
        below, enough = (below, middle) if decides(middle) else (middle, enough)
    return enough


def _judge(boundary: Boundary, n: int, control_worse: tuple[float, ...], treated_worse: tuple[float, ...]) -> Evidence:
    """Evidence of n blocks with the counts (a, b) as they stand against each claim; counts may be real numbers."""
    more = ratio_mixture(Prior.CURE, 1.0)
    near = ratio_mixture(Prior.SAME, 1.0 - boundary.margin)
    implicated = float(more.log_e(n, control_worse[0], control_worse[1]))
    worsened = float(more.log_e(n, treated_worse[1], treated_worse[0]))
    explains = float(near.log_e(n, treated_worse[1], treated_worse[0]))
    multiplies = float(near.log_e(n, control_worse[0], control_worse[1]))
    needed, needed_near = -math.log(boundary.alpha), -math.log(boundary.alpha_exonerate)
    claim = None
    if implicated >= needed:
        claim = Claim.IMPLICATED
    elif worsened >= needed:
        claim = Claim.WORSENED
    elif min(explains, multiplies) >= needed_near:
        claim = Claim.EXONERATED
    return Evidence(implicated, worsened, explains, multiplies, claim)
