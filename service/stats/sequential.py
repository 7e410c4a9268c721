"""The sequential decision of an A/B experiment: when the counts of control and treated arm settle the question.

`a` and `b` are the failures of the control and the treated arm in n complete blocks of one run each.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from service.stats.intervals import lower_bound
from service.stats.mixture import Prior
from service.stats.spending import Region, Spending, build_region

FORMAT = 1
FUTILITY_LIMIT = 0.05
FUTILITY_FROM_BLOCK = 6


class Claim(StrEnum):
    """What the boundary says at a stop."""

    IMPLICATED = "implicated"
    WORSENED = "worsened"
    EXONERATED = "exonerated"
    FUTILE = "futile"


@dataclass(frozen=True, slots=True)
class Boundary:
    """Both regions of one experiment, fixed before its first block and stored with it.

    `more` rejects "the treated arm fails at least as often" (and, with the arms exchanged, the mirror claim), `near`
    rejects "one arm fails at most 1 - margin times as often as the other".
    """

    blocks: int
    alpha: float
    alpha_exonerate: float
    margin: float
    prior: Prior
    spending: Spending
    more: Region
    near: Region

    def implicated(self, n: int, a: int, b: int) -> bool:
        """Whether the control fails more often than the treated arm, at level alpha over all looks."""
        return self.more.rejects(n, a, b)

    def worsened(self, n: int, a: int, b: int) -> bool:
        """Whether the treated arm fails more often than the control, at level alpha over all looks."""
        return self.more.rejects(n, b, a)

    def rejects_explains(self, n: int, a: int, b: int) -> bool:
        """Whether "the cause accounts for at least `margin` of the failures" (p_b <= (1 - margin) p_a) is rejected."""
        return self.near.rejects(n, b, a)

    def rejects_multiplies(self, n: int, a: int, b: int) -> bool:
        """Whether "the treatment multiplies failures by 1 / (1 - margin)" (p_a <= (1 - margin) p_b) is rejected."""
        return self.near.rejects(n, a, b)

    def exonerated(self, n: int, a: int, b: int) -> bool:
        """Whether both nulls of an exoneration are rejected at this look; `walk` also adds up earlier looks."""
        return self.rejects_explains(n, a, b) and self.rejects_multiplies(n, a, b)

    def to_json(self) -> dict[str, Any]:
        """The boundary as JSON types; `boundary_from_json` gives an equal one back."""
        return {
            "format": FORMAT,
            "blocks": self.blocks,
            "alpha": self.alpha,
            "alpha_exonerate": self.alpha_exonerate,
            "margin": self.margin,
            "prior": self.prior.value,
            "spending": self.spending.value,
            "more": _region_to_json(self.more),
            "near": _region_to_json(self.near),
        }


@lru_cache(maxsize=256)
def build_boundary(
    blocks: int = 30,
    alpha: float = 0.025,
    alpha_exonerate: float = 0.05,
    margin: float = 0.5,
    prior: Prior = Prior.FIFTY_FIFTY,
    spending: Spending = Spending.POCOCK,
) -> Boundary:
    """The boundary of an experiment of at most `blocks` blocks (1 to 100), both arms once a block.

    With K treated arms pass alpha / K and alpha_exonerate as it is. Guarantee, for every pair of rates, when the runs
    of an arm are independent with one rate: IMPLICATED with p_a <= p_b, and WORSENED with p_b <= p_a, each have
    probability at most alpha over all looks together; EXONERATED with one rate at most (1 - margin) times the other
    at most alpha_exonerate. Drift that both arms of a block share stays below alpha too (simulated; facts 2.2).
    ValueError for a margin outside (0, 1) or blocks or alpha out of range.

    Source: `spending.build_region`.
    """
    if not 0.0 < margin < 1.0:
        raise ValueError(f"margin {margin} must lie between 0 and 1, for example 0.5")
    return Boundary(
        blocks,
        alpha,
        alpha_exonerate,
        margin,
        prior,
        spending,
        build_region(blocks, alpha, 1.0, prior, spending),
        build_region(blocks, alpha_exonerate, 1.0 - margin, Prior.SAME, spending),
    )


def boundary_from_json(stored: Mapping[str, Any]) -> Boundary:
    """The boundary that `Boundary.to_json` wrote; ValueError for another format."""
    if stored.get("format") != FORMAT:
        raise ValueError(f"boundary format {stored.get('format')!r} is not {FORMAT}: rebuild it with build_boundary")
    return Boundary(
        stored["blocks"],
        stored["alpha"],
        stored["alpha_exonerate"],
        stored["margin"],
        Prior(stored["prior"]),
        Spending(stored["spending"]),
        _region_from_json(stored["more"]),
        _region_from_json(stored["near"]),
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """Matching (`match`) and neither matching nor clean (`other`) outcomes of both arms in n blocks, one run each."""

    n: int = 0
    a_match: int = 0
    a_other: int = 0
    b_match: int = 0
    b_other: int = 0

    def __add__(self, more: "Counts") -> "Counts":
        return Counts(
            self.n + more.n,
            self.a_match + more.a_match,
            self.a_other + more.a_other,
            self.b_match + more.b_match,
            self.b_other + more.b_other,
        )

    def against_control_worse(self) -> tuple[int, int]:
        """(a, b) with `other` imputed against "the control fails more often": clean in control, match in treated."""
        return self.a_match, self.b_match + self.b_other

    def against_treated_worse(self) -> tuple[int, int]:
        """(a, b) with `other` imputed against "the treated arm fails more often"."""
        return self.a_match + self.a_other, self.b_match


@dataclass(frozen=True, slots=True)
class Look:
    """The state after one more block: what it claims, if anything, and which exoneration nulls have been rejected."""

    counts: Counts
    claim: Claim | None
    has_rejected_explains: bool
    has_rejected_multiplies: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """The first look at which the boundary settled or gave up the question."""

    n: int
    claim: Claim
    counts: Counts


def walk(boundary: Boundary, blocks: Iterable[Counts]) -> Iterator[Look]:
    """Looks after every complete block, in issue order, up to the boundary's most blocks; it goes on past a claim.

    Each element is one block (n = 1). The order of the claims is that of the verdicts; `other` counts against
    each claim. The two nulls of EXONERATED may be rejected at different looks.

    Source: the regions of `spending.build_region` (Lan and DeMets 1983, Biometrika 70:659-663, for the spending).
    Assumption and guarantee as in `build_boundary`: the levels hold over all looks of one boundary.
    """
    counts, explains, multiplies = Counts(), False, False
    for block in blocks:
        if block.n != 1:
            raise ValueError(f"{block.n} blocks in one element: the boundary looks after every single block")
        counts += block
        if counts.n > boundary.blocks:
            return
        control_worse, treated_worse = counts.against_control_worse(), counts.against_treated_worse()
        explains = explains or boundary.rejects_explains(counts.n, *treated_worse)
        multiplies = multiplies or boundary.rejects_multiplies(counts.n, *control_worse)
        claim = None
        if boundary.implicated(counts.n, *control_worse):
            claim = Claim.IMPLICATED
        elif boundary.worsened(counts.n, *treated_worse):
            claim = Claim.WORSENED
        elif explains and multiplies:
            claim = Claim.EXONERATED
        yield Look(counts, claim, explains, multiplies)


def first_stop(boundary: Boundary, blocks: Iterable[Counts], *, stops_for_futility: bool = True) -> Stop | None:
    """The first look with a claim or, from block 6 on, with little hope of one; None while blocks should go on.

    None after `boundary.blocks` blocks means that the most blocks were run without a claim.

    Source: `walk` for the claims; Spiegelhalter, Freedman and Blackburn 1986, Controlled Clinical Trials 7:8-17, for
    futility. Guarantee: the levels of `build_boundary`; stopping for futility only lowers them.
    """
    from service.stats.futility import is_futile

    for look in walk(boundary, blocks):
        n = look.counts.n
        if look.claim is not None:
            return Stop(n, look.claim, look.counts)
        if stops_for_futility and is_futile(boundary, n, look.counts.a_match, look.counts.b_match):
            return Stop(n, Claim.FUTILE, look.counts)
    return None


def early_not_reproduced_blocks(failures: int, runs: int) -> int | None:
    """Blocks after which "no arm has failed" may end an experiment on a test that failed `failures` of `runs` times.

    ceil(ln 0.05 / ln(1 - p_low)), p_low the one-sided 95 % Clopper-Pearson lower limit of the historical rate: at that
    rate, so many clean runs have probability at most 0.05. None without a historical failure.

    >>> early_not_reproduced_blocks(13, 20)
    6
    """
    from service.stats.power import clean_runs_to_exclude

    rate = lower_bound(failures, runs)
    return clean_runs_to_exclude(rate) if rate > 0.0 else None


def _region_to_json(region: Region) -> dict[str, Any]:
    return {
        "alpha": region.alpha,
        "ratio": region.ratio,
        "sup_error": region.sup_error,
        "least": [list(row) for row in region.least],
    }


def _region_from_json(stored: Mapping[str, Any]) -> Region:
    least = tuple(tuple(row) for row in stored["least"])
    return Region(len(least), stored["alpha"], stored["ratio"], least, stored["sup_error"])
