"""The verdict of one treated arm, rule by rule, on paths that can be checked by hand."""

import pytest

from service.domain import Observation, Verdict
from service.experiments.model import Counts, Reason
from service.experiments.verdicts import (
    EXACT,
    SIGN,
    Decision,
    Pair,
    decide,
    give_up,
    rate_bound,
    rate_interval,
    share_interval,
)
from service.stats.intervals import difference_interval, share_explained, upper_bound
from service.stats.sequential import build_boundary
from service.stats.sign_test import PairedBlock, position_matters, sign_rejection

SHIPPED = build_boundary()
LETTERS = {"m": Observation.MATCH, "c": Observation.CLEAN, "o": Observation.OTHER}


def placed(pairs):
    """The pairs as the position diagnostic takes them."""
    match = Observation.MATCH
    return [PairedBlock(pair.control is match, pair.treated is match, pair.control_first) for pair in pairs]


def path(blocks, first=(True, False)):
    """Pairs of "control treated" letters; block n has the index 10 n, and the arms take turns in coming first."""
    return [
        Pair(10 * n, LETTERS[control], LETTERS[treated], first[n % len(first)])
        for n, (control, treated) in enumerate(blocks, start=1)
    ]


@pytest.mark.parametrize(
    ("blocks", "n", "verdict"),
    [
        (["mc"] * 30, 4, Verdict.IMPLICATED),
        (["cm"] * 30, 4, Verdict.WORSENED),
        (["mm"] * 30, 7, Verdict.EXONERATED),
    ],
)
def test_a_crossed_boundary_is_the_verdict_at_its_block(blocks, n, verdict):
    decision = decide(path(blocks), SHIPPED)
    expected = [Counts(), Counts()]
    for control, treated in blocks[:n]:
        expected = [expected[0].add(LETTERS[control]), expected[1].add(LETTERS[treated])]
    assert decision == Decision(verdict, *expected, stop_index=10 * n, reason=None, method=EXACT)
    assert decide(path(blocks[: n - 1]), SHIPPED).verdict is None


def test_an_unfinished_path_reports_its_counts():
    assert decide(path(["mc", "co", "cc"]), SHIPPED) == Decision(None, Counts(1, 2, 0), Counts(0, 2, 1))
    assert decide([], SHIPPED) == Decision(None, Counts(), Counts())


def test_a_treatment_that_was_not_shown_to_act_cannot_be_exonerated():
    decision = decide(path(["mm"] * 30), SHIPPED, may_exonerate=False)
    assert (decision.verdict, decision.reason) == (Verdict.INCONCLUSIVE, Reason.UNVERIFIED)
    assert decision.stop_index == 70
    assert decide(path(["mc"] * 30), SHIPPED, may_exonerate=False).verdict is Verdict.IMPLICATED


def test_clean_arms_end_as_not_reproduced_by_futility_or_by_history():
    by_futility = decide(path(["cc"] * 30), SHIPPED)
    assert (by_futility.verdict, by_futility.reason) == (Verdict.NOT_REPRODUCED, Reason.FUTILITY)
    assert by_futility.stop_index == 100
    by_history = decide(path(["cc"] * 30), SHIPPED, history=(13, 20))
    assert (by_history.verdict, by_history.reason, by_history.stop_index) == (Verdict.NOT_REPRODUCED, None, 60)
    # 2 of 20 would need 165 clean blocks, and no failure in history says nothing.
    assert decide(path(["cc"] * 30), SHIPPED, history=(2, 20)) == by_futility
    assert decide(path(["cc"] * 30), SHIPPED, history=(0, 20)) == by_futility


@pytest.mark.parametrize("failing", ["mc", "cm"])
def test_one_failure_in_either_arm_keeps_history_from_ending_it(failing):
    decision = decide(path([failing, *["cc"] * 29]), SHIPPED, history=(13, 20))
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert decision.stop_index > 60


def test_the_most_blocks_end_what_nothing_else_ended():
    boundary = build_boundary(5)
    clean = decide(path(["cc"] * 5), boundary)
    assert (clean.verdict, clean.reason, clean.stop_index) == (Verdict.NOT_REPRODUCED, Reason.BLOCKS_MAX, 50)
    for failing in ("mc", "cm"):
        failed = decide(path(["cc"] * 4 + [failing]), boundary)
        assert (failed.verdict, failed.reason, failed.stop_index) == (Verdict.INCONCLUSIVE, Reason.BLOCKS_MAX, 50)
    assert decide(path(["cc"] * 4), boundary).verdict is None


@pytest.mark.parametrize("other", ["oc", "co"])
def test_too_many_other_outcomes_end_it_after_six_blocks(other):
    blocks = [other, other, "cc", "cc", "cc", "cc", "cc"]
    decision = decide(path(blocks), SHIPPED)
    assert (decision.verdict, decision.reason) == (Verdict.INCONCLUSIVE, Reason.OTHER_OUTCOMES)
    assert decision.stop_index == 60
    assert decide(path(blocks[:5]), SHIPPED).verdict is None
    # One of six is 17 %, two of ten are 20 %: not more than the limit.
    assert decide(path([other, "cc", "cc", "cc", "cc", "cc"]), SHIPPED).verdict is None
    late = path(["mm", "cc"] * 4 + [other, other])
    assert decide(late, SHIPPED).verdict is None


def test_other_outcomes_come_before_not_reproduced_and_after_a_claim():
    blocks = ["oc", "oc", "cc", "cc", "cc", "cc"]
    assert decide(path(blocks), SHIPPED, history=(13, 20)).reason is Reason.OTHER_OUTCOMES
    # A control's crash counts as clean: five matches of six against none are a claim all the same.
    claimed = decide(path(["mc"] * 3 + ["oc"] + ["mc"] * 2), SHIPPED)
    assert claimed.verdict is Verdict.IMPLICATED
    assert claimed.reason is None


@pytest.mark.parametrize("mirrors", [False, True])
def test_a_position_effect_needs_the_sign_test_to_agree(mirrors):
    # Whatever runs second fails: in three blocks the treated arm, in the rest the control.
    first = [False] * 3 + [True] * 27
    blocks = ["cm"] * 3 + ["mc"] * 27
    if mirrors:
        blocks = [letters[::-1] for letters in blocks]
    pairs = [
        Pair(10 * n, LETTERS[letters[0]], LETTERS[letters[1]], letters[0] == "c") for n, letters in enumerate(blocks, 1)
    ]
    by_boundary = next(n for n in range(4, 31) if SHIPPED.implicated(n, n - 3, 3))
    by_sign = sign_rejection(SHIPPED, first, [not one for one in first])
    assert position_matters(placed(pairs[:by_boundary]))
    assert decide(pairs[:by_boundary], SHIPPED).verdict is None
    assert by_sign > by_boundary
    decision = decide(pairs, SHIPPED)
    assert decision.verdict is (Verdict.WORSENED if mirrors else Verdict.IMPLICATED)
    assert (decision.method, decision.stop_index) == (SIGN, 10 * by_sign)


@pytest.mark.parametrize("mirrors", [False, True])
def test_the_sign_test_must_agree_however_other_outcomes_are_counted(mirrors):
    # The control fails mostly in second place, and the treated arm crashed once, in block 3. Without that crash the
    # sign test would agree at block 9; counted as a failure it takes away one discordant block.
    blocks = ["mc", "mc", "mo", "cc", "mc", "cc", "mc", "mc", "mc", "mc"]
    control_first = [n in {4, 6} for n in range(1, 11)]
    if mirrors:
        blocks = [letters[::-1] for letters in blocks]
    pairs = [
        Pair(10 * n, LETTERS[letters[0]], LETTERS[letters[1]], early is not mirrors)
        for n, (letters, early) in enumerate(zip(blocks, control_first, strict=True), 1)
    ]
    failed = [letters[mirrors] == "m" for letters in blocks]
    assert sign_rejection(SHIPPED, failed, [False] * 10) == 9
    decision = decide(pairs, SHIPPED)
    assert decision.verdict is (Verdict.WORSENED if mirrors else Verdict.IMPLICATED)
    assert (decision.method, decision.stop_index) == (SIGN, 100)


def test_an_uneven_order_is_no_effect_of_the_position():
    # The control always runs second: nothing tells its place from its arm, and the boundary decides alone.
    pairs = path(["mc"] * 30, first=(False,))
    assert not position_matters(placed(pairs))
    assert decide(pairs, SHIPPED).method == EXACT
    # Six failures in second place against none in first, p = .0005, in one arm only.
    control_only = path(["mc", "cc"] * 6, first=(False, True)[::-1])
    assert position_matters(placed(control_only))
    treated_only = path(["cm", "cc"] * 6, first=(False, True))
    assert position_matters(placed(treated_only))


def test_giving_up_asks_whether_anything_was_reproduced_only_for_the_budget():
    clean, failed = path(["cc"] * 3), path(["cc", "mc", "cc"])
    assert give_up(clean, Reason.BUDGET) == Decision(
        Verdict.NOT_REPRODUCED, Counts(0, 3, 0), Counts(0, 3, 0), 30, Reason.BUDGET
    )
    assert give_up(failed, Reason.BUDGET) == Decision(
        Verdict.INCONCLUSIVE, Counts(1, 2, 0), Counts(0, 3, 0), 30, Reason.BUDGET
    )
    assert give_up(clean[:1], Reason.BUDGET).verdict is Verdict.NOT_REPRODUCED
    assert give_up(clean, Reason.HOST_LOST).verdict is Verdict.INCONCLUSIVE
    assert give_up(clean, Reason.CANCELLED).stop_index == 30
    for reason in (Reason.BUDGET, Reason.CANCELLED):
        assert give_up([], reason) == Decision(Verdict.INCONCLUSIVE, Counts(), Counts(), None, reason)


def test_the_figures_beside_the_verdict():
    control, treated = Counts(13, 6, 1), Counts(2, 18, 0)
    difference, share = difference_interval(13, 20, 2, 20), share_explained(13, 20, 2, 20)
    shown = rate_interval(control, treated)
    assert (shown.lower, shown.upper, shown.method) == (difference.lower, difference.upper, "Miettinen-Nurminen")
    estimate, limits = share_interval(control, treated)
    assert (estimate, limits.lower, limits.upper, limits.method) == (
        share.estimate,
        share.lower,
        share.upper,
        "Koopman",
    )
    assert rate_interval(Counts(), treated) is None
    assert rate_interval(control, Counts()) is None
    assert share_interval(Counts(0, 20, 0), treated) == (None, None)
    assert rate_bound(Counts(0, 20, 0), Counts(0, 11, 3)) == rate_bound(Counts(0, 11, 0), Counts(0, 20, 0))
    assert rate_bound(Counts(0, 20, 0), Counts(0, 11, 3)) == upper_bound(0, 20)
    assert rate_bound(Counts(0, 1, 0), Counts()) == upper_bound(0, 1)
    assert rate_bound(Counts(), Counts()) is None
