"""The decision when the position in a block matters: randomisation alone carries it, no model of the rates does."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from service.stats.compare import boschloo
from service.stats.evalues import PairedCounts, log_e_ratio
from service.stats.sequential import Boundary, Claim
from service.stats.spending import spent

POSITION_LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class PairedBlock:
    """One complete block: whether each arm failed, and whether the control ran first."""

    control_failed: bool
    treated_failed: bool
    control_first: bool


@dataclass(frozen=True, slots=True)
class SignStop:
    """The first block at which the fallback settled the question."""

    n: int
    claim: Claim


def position_p_value(blocks: Sequence[PairedBlock]) -> float:
    """P-value of "no arm fails more often in one place of a block than in the other"; 1 without blocks.

    Boschloo's test within each arm, its runs in first place against those in second, times two for the two arms.
    Within the arms, because an uneven order would otherwise make an effect of the treatment look like one of the place.

    Source: Boschloo 1970, Statistica Neerlandica 24:1-35; Bonferroni over the arms. Assumes independent runs, one rate
    per arm and place. Guarantee: level at most nominal, fixed n.
    """
    by_control = _place_p_value([block.control_failed for block in blocks], [block.control_first for block in blocks])
    by_treated = _place_p_value(
        [block.treated_failed for block in blocks], [not block.control_first for block in blocks]
    )
    return min(2 * min(by_control, by_treated), 1.0)


def position_matters(blocks: Sequence[PairedBlock]) -> bool:
    """Whether the position diagnostic rejects at 0.05, so that the verdict should come from `first_sign_stop`.

    Source and assumption as in `position_p_value`. Guarantee: level at most 0.05 at fixed n, a diagnostic and no claim.
    """
    return position_p_value(blocks) < POSITION_LEVEL


def _place_p_value(failed: list[bool], is_first: list[bool]) -> float:
    first = [one for one, early in zip(failed, is_first, strict=True) if early]
    second = [one for one, early in zip(failed, is_first, strict=True) if not early]
    return boschloo(sum(first), len(first), sum(second), len(second))


def sign_rejection(boundary: Boundary, first_failed: Sequence[bool], second_failed: Sequence[bool]) -> int | None:
    """The block at which a one-sided sign test with exact spending rejects, or None: "the first arm fails more often".

    Only blocks with exactly one failure count; given the past, each is a fair coin under the null that the treatment
    does nothing, whatever position, drift or dependence between the runs of a block do. After such a block the largest
    numbers of first-arm failures are rejected while the probability spent stays within the boundary's schedule.

    Guarantee: the probability of ever rejecting is at most `boundary.alpha`, conditionally on which blocks are
    discordant. Blocks beyond the boundary's most are ignored.

    Source: Lan and DeMets 1983, Biometrika 70:659-663, for the spending.
    """
    alive, total, discordant, first_only = np.ones(1), 0.0, 0, 0
    blocks = zip(first_failed, second_failed, strict=True)
    for n, (first, second) in enumerate(islice(blocks, boundary.blocks), start=1):
        if first == second:
            continue
        discordant += 1
        first_only += first
        after = np.zeros(discordant + 1)
        after[:-1] += alive / 2
        after[1:] += alive / 2
        tails = total + np.cumsum(after[::-1])
        limit = spent(boundary.spending, boundary.alpha, n / boundary.blocks)
        rejected = int(np.sum(tails <= limit * (1 + 1e-12)))
        least = discordant + 1 - rejected
        if first_only >= least:
            return n
        if rejected:
            total = float(tails[rejected - 1])
            after[least:] = 0.0
        alive = after
    return None


def first_sign_stop(boundary: Boundary, blocks: Sequence[PairedBlock]) -> SignStop | None:
    """The first claim of the fallback, or None: sign tests for IMPLICATED and WORSENED, bets for EXONERATED.

    Both sign tests spend the boundary's alpha each and are valid from the randomised order alone; both exoneration
    nulls need a betting e-value of 1 / alpha_exonerate, at any looks, and allow any dependence inside a block. Costs
    about a third more runs than the boundary at large effects.

    Source: Lan and DeMets 1983, Biometrika 70:659-663, for the spending; Waudby-Smith and Ramdas 2024, JRSS B 86:1-27,
    for the bets. Guarantee: over all looks, alpha for each sign test when the treatment does nothing, and
    alpha_exonerate for EXONERATED.
    """
    control = [block.control_failed for block in blocks]
    treated = [block.treated_failed for block in blocks]
    stops = (
        (sign_rejection(boundary, control, treated), Claim.IMPLICATED),
        (sign_rejection(boundary, treated, control), Claim.WORSENED),
        (_bets_exonerate(boundary, blocks), Claim.EXONERATED),
    )
    reached = [SignStop(n, claim) for n, claim in stops if n is not None]
    return min(reached, key=lambda stop: stop.n, default=None)


def _bets_exonerate(boundary: Boundary, blocks: Sequence[PairedBlock]) -> int | None:
    """The block by which betting e-values have rejected both exoneration nulls, or None."""
    needed, ratio = -math.log(boundary.alpha_exonerate), 1.0 - boundary.margin
    counts, explains, multiplies = PairedCounts(0, 0, 0, 0), False, False
    for n, block in enumerate(blocks[: boundary.blocks], start=1):
        counts = _add(counts, block)
        explains = explains or log_e_ratio(counts, ratio) >= needed
        multiplies = multiplies or log_e_ratio(counts.exchanged(), ratio) >= needed
        if explains and multiplies:
            return n
    return None


def _add(counts: PairedCounts, block: PairedBlock) -> PairedCounts:
    control, treated = block.control_failed, block.treated_failed
    return PairedCounts(
        counts.control_only + (control and not treated),
        counts.treated_only + (treated and not control),
        counts.both + (control and treated),
        counts.neither + (not control and not treated),
    )
