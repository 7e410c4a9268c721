"""The verdict of one treated arm: rules 3 to 6 on the counts of complete blocks, in issue order.

Rules 1 and 2 (like for like, the treatment happened) are asked first by the kind. The decision comes from the exact
boundary alone; intervals are shown beside it. `other` counts against every claim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from service.domain import Observation, Verdict
from service.experiments.model import Counts, Interval, Reason
from service.stats.futility import is_futile
from service.stats.intervals import difference_interval, share_explained, upper_bound
from service.stats.sequential import Boundary, Claim, early_not_reproduced_blocks, walk
from service.stats.sequential import Counts as BlockCounts
from service.stats.sign_test import PairedBlock, first_sign_stop, position_matters

EXACT = "exact spending boundary"
SIGN = "sign test, because the position in the block matters"
OTHER_SHARE = 0.20
OTHER_FROM_BLOCK = 6

_CLAIMS = {
    Claim.IMPLICATED: Verdict.IMPLICATED,
    Claim.WORSENED: Verdict.WORSENED,
    Claim.EXONERATED: Verdict.EXONERATED,
}


@dataclass(frozen=True, slots=True)
class Pair:
    """One complete block of a comparison: the victim in control and treated arm, and whether the control ran first."""

    index: int
    control: Observation
    treated: Observation
    control_first: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a comparison stands. `verdict` None: go on. `stop_index`: the block whose completion settled it."""

    verdict: Verdict | None
    control: Counts
    treated: Counts
    stop_index: int | None = None
    reason: Reason | None = None
    method: str = EXACT


def decide(
    pairs: Sequence[Pair], boundary: Boundary, *, history: tuple[int, int] | None = None, may_exonerate: bool = True
) -> Decision:
    """Return the first decision that the pairs allow.

    `history` (failures, runs): lets an experiment at zero end early as NOT_REPRODUCED. `may_exonerate` False: the
    treatment was never shown to act, and an exoneration becomes INCONCLUSIVE. The boundary is looked at after every
    block; where the position in the block matters, a claim must hold in the sign test too.
    """
    quiet = early_not_reproduced_blocks(*history) if history else None
    control, treated = Counts(), Counts()
    looks = walk(boundary, (_block(pair) for pair in pairs))
    for n, (pair, look) in enumerate(zip(pairs, looks, strict=False), start=1):
        control, treated = control.add(pair.control), treated.add(pair.treated)
        method = EXACT
        if look.claim is not None and position_matters(_paired(pairs[:n], Observation.MATCH)):
            method = SIGN
        if look.claim is not None and (method is EXACT or _sign_test_agrees(look.claim, pairs[:n], boundary)):
            verdict = _CLAIMS[look.claim]
            if verdict is Verdict.EXONERATED and not may_exonerate:
                return Decision(Verdict.INCONCLUSIVE, control, treated, pair.index, Reason.UNVERIFIED, method)
            return Decision(verdict, control, treated, pair.index, method=method)
        if n >= OTHER_FROM_BLOCK and max(control.other, treated.other) > OTHER_SHARE * n:
            return Decision(Verdict.INCONCLUSIVE, control, treated, pair.index, Reason.OTHER_OUTCOMES)
        nothing_matched = control.match == 0 and treated.match == 0
        if quiet is not None and n >= quiet and nothing_matched:
            return Decision(Verdict.NOT_REPRODUCED, control, treated, pair.index)
        if is_futile(boundary, n, control.match, treated.match):
            return _gave_up(control, treated, pair.index, Reason.FUTILITY)
        if n >= boundary.blocks:
            return _gave_up(control, treated, pair.index, Reason.BLOCKS_MAX)
    return Decision(None, control, treated)


def give_up(pairs: Sequence[Pair], reason: Reason) -> Decision:
    """Return the decision when the experiment must stop here, for a reason outside the counts."""
    control, treated = Counts(), Counts()
    for pair in pairs:
        control, treated = control.add(pair.control), treated.add(pair.treated)
    if reason is Reason.BUDGET:
        return _gave_up(control, treated, pairs[-1].index if pairs else None, reason)
    return Decision(Verdict.INCONCLUSIVE, control, treated, pairs[-1].index if pairs else None, reason)


def _gave_up(control: Counts, treated: Counts, index: int | None, reason: Reason) -> Decision:
    """Rule 5 before rule 6: an experiment in which no arm failed with the signature did not reproduce."""
    if control.match == 0 and treated.match == 0 and control.runs > 0:
        return Decision(Verdict.NOT_REPRODUCED, control, treated, index, reason)
    return Decision(Verdict.INCONCLUSIVE, control, treated, index, reason)


def _block(pair: Pair) -> BlockCounts:
    return BlockCounts(
        1,
        pair.control is Observation.MATCH,
        pair.control is Observation.OTHER,
        pair.treated is Observation.MATCH,
        pair.treated is Observation.OTHER,
    )


def _sign_test_agrees(claim: Claim, pairs: Sequence[Pair], boundary: Boundary) -> bool:
    """Return whether randomisation alone supports the claim, with `other` imputed either way against it."""
    other_is_failure = [(), (Observation.OTHER,)]
    return all(
        (stop := first_sign_stop(boundary, _paired(pairs, Observation.MATCH, *more))) is not None
        and stop.claim is claim
        for more in other_is_failure
    )


def _paired(pairs: Sequence[Pair], *failing: Observation) -> tuple[PairedBlock, ...]:
    return tuple(PairedBlock(pair.control in failing, pair.treated in failing, pair.control_first) for pair in pairs)


def rate_interval(control: Counts, treated: Counts) -> Interval | None:
    """Return the interval of the difference of failure rates, control minus treated; None without runs."""
    if control.runs == 0 or treated.runs == 0:
        return None
    found = difference_interval(control.match, control.runs, treated.match, treated.runs)
    return Interval(_finite(found.lower), _finite(found.upper), found.method.value)


def share_interval(control: Counts, treated: Counts) -> tuple[float | None, Interval | None]:
    """Return the share of the control's failures that the treatment explains, with Koopman's interval."""
    if control.match == 0:
        return None, None
    found = share_explained(control.match, control.runs, treated.match, treated.runs)
    return found.estimate, Interval(_finite(found.lower), _finite(found.upper), found.method.value)


def rate_bound(control: Counts, treated: Counts) -> float | None:
    """Return the 95 % upper bound of the failure rate when no arm failed: from the larger arm's clean runs."""
    runs = max(control.clean, treated.clean)
    return upper_bound(0, runs) if runs else None


def _finite(limit: float) -> float | None:
    return limit if math.isfinite(limit) else None
