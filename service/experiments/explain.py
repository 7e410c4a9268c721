"""What a finding says: the sentence of each arm, the explanations, and the next decisive experiment as a command."""

from __future__ import annotations

import shlex
from typing import Any

from gpu_runner.protocol import Treatment, TreatmentKind
from service.domain import Verdict
from service.experiments.acted import describe_check
from service.experiments.model import ArmFinding, ArmSpec, Counts, Design, Interval, PreparedEvidence, Reason
from service.experiments.treatments import describe, is_aa, to_text
from service.experiments.verdicts import Decision
from service.stats.extension import blocks_to_decide
from service.stats.sequential import Boundary
from service.stats.sequential import Counts as BlockCounts

_REASONS = {
    Reason.BLOCKS_MAX: "the most blocks were run without a decision",
    Reason.BUDGET: "the budget of executions is spent",
    Reason.FUTILITY: "further blocks would very probably not decide it",
    Reason.CANCELLED: "it was cancelled",
    Reason.ARM_UNBUILDABLE: "an arm could not be made",
    Reason.HOST_LOST: "blocks were lost to the infrastructure again and again",
    Reason.OTHER_OUTCOMES: "more than a fifth of the runs ended in another way than the signature or a pass",
    Reason.UNVERIFIED: "nothing showed that the treatment acted, and what was never shown to act cannot be exonerated",
}


def percent(rate: float) -> str:
    """Return a rate in [0, 1] as percent.

    >>> percent(0.65)
    '65 %'
    """
    return f"{100 * rate:.0f} %"


def fraction(counts: Counts) -> str:
    """Return matches of runs, with `other` named.

    >>> fraction(Counts(match=3, clean=9, other=1))
    '3/13 (1 ended another way)'
    """
    text = f"{counts.match}/{counts.runs}"
    return text + (f" ({counts.other} ended another way)" if counts.other else "")


def limits(interval: Interval) -> str:
    """Return an interval of rates in percent with its method.

    >>> limits(Interval(0.2, 0.8, "Miettinen-Nurminen"))
    '95 % interval 20 % to 80 %, Miettinen-Nurminen'
    """
    low = "below any bound" if interval.lower is None else percent(interval.lower)
    high = "above any bound" if interval.upper is None else percent(interval.upper)
    return f"{percent(interval.confidence)} interval {low} to {high}, {interval.method}"


def change(design: Design, arm: ArmSpec) -> str:
    """Return in words what distinguishes the arm from the control."""
    own = tuple(item for item in arm.treatments if item not in design.control.treatments)
    missing = tuple(item for item in design.control.treatments if item not in arm.treatments)
    if missing and not own:
        return f"{describe(arm.treatments)} instead of {describe(missing)}"
    return describe(own or arm.treatments)


def under(words: str) -> str:
    """Return words for an arm so that they follow a count.

    >>> under("the victim alone"), under("without suspect")
    ('with the victim alone', 'without suspect')
    """
    return words if words.startswith(("with", "in ", "at ", "built", "nothing")) else f"with {words}"


def arm_sentence(design: Design, arm: ArmSpec, finding: ArmFinding) -> str:
    """Return the plain sentence of one treated arm."""
    counts = f"{fraction(finding.control)} in the control, {fraction(finding.treated)} {under(change(design, arm))}"
    victim = design.victim
    match finding.verdict:
        case Verdict.IMPLICATED:
            partly = finding.treated.match > 0
            text = f"{_cause(design, arm)} makes {victim} fail: {counts}."
            if finding.share_estimate is not None and finding.share_explained is not None:
                share = percent(finding.share_estimate)
                text += f" It explains {share} of the failures ({limits(finding.share_explained)})."
            return text + (" It contributes, it is not the sole cause." if partly else "")
        case Verdict.WORSENED:
            return f"{victim} fails more often {under(change(design, arm))}: {counts}."
        case Verdict.EXONERATED:
            text = f"{_cause(design, arm)} neither accounts for half of the failures of {victim}"
            return f"{text} nor doubles them: {counts}."
        case Verdict.NOT_REPRODUCED:
            bound = finding.rate_upper_bound
            text = f"{victim} did not fail with the signature in any arm ({counts}):"
            text += " nothing is implicated and nothing exonerated."
            return text + (f" Its rate here is below {percent(bound)} (95 % upper bound)." if bound is not None else "")
        case Verdict.NOT_LIKE_FOR_LIKE:
            fields = "; ".join(
                f"{d.channel} {d.name}: {short(d.control)} against {short(d.treated)}" for d in finding.differences[:3]
            )
            more = len(finding.differences) - 3
            return f"The arms differ in more than what was declared: {fields}" + (
                f" and {more} more." if more > 0 else "."
            )
        case Verdict.TREATMENT_INERT:
            return f"The treatment did nothing ({change(design, arm)}): {inert_because(finding)}."
        case _:
            reason = _REASONS.get(finding.reason, "it stopped") if finding.reason else "it stopped"
            detail = f" ({'; '.join(finding.notes)})" if finding.notes and finding.control.runs == 0 else ""
            subject = "an A/A differs" if is_aa(arm.treatments) else f"{_cause(design, arm)} matters"
            text = f"Could not tell whether {subject} for {victim}: {reason}{detail}."
            if finding.control.runs:
                text += f" So far {counts}."
            if finding.more_blocks:
                text += f" At these rates about {finding.more_blocks} more blocks would decide."
            return text


def inert_because(finding: ArmFinding) -> str:
    """Return why a treatment counts as inert."""
    if finding.counters:
        return "; ".join(describe_check(check) for check in finding.counters)
    return "trees, artefacts and test lists are equal, and no counter moved"


def short(value: Any) -> str:
    """Return a context value cut to 60 characters; None is "not there"."""
    text = "not there" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _cause(design: Design, arm: ArmSpec) -> str:
    changed = tuple(item for item in arm.treatments if item not in design.control.treatments)
    changed += tuple(item for item in design.control.treatments if item not in arm.treatments)
    names = [_cause_name(item) for item in changed]
    return " with ".join(names) or "nothing (A/A)"


def _cause_name(item: Treatment) -> str:
    match item.kind:
        case TreatmentKind.EXCLUDE | TreatmentKind.INSERT_BEFORE:
            return ", ".join(item.tests)
        case TreatmentKind.ALONE:
            return "the suite's context"
        case TreatmentKind.ORDER:
            return "the order of the tests"
        case TreatmentKind.TOGGLE:
            return f"what toggle {item.toggle} switches"
        case TreatmentKind.NONE:
            return "nothing (A/A)"
        case _:
            return f"the difference {describe((item,))!r}"


def list_notes(design: Design, arm: ArmSpec, prepared: dict[int, PreparedEvidence]) -> tuple[str, ...]:
    """Return what must be named about the test lists: tests left out of all arms, tests that only one arm has."""
    own = prepared.get(arm.index)
    if own is None:
        return ()
    control = prepared[0]
    left_out = tuple(dict.fromkeys(own.left_out + control.left_out))
    notes = []
    if left_out:
        notes.append(f"left out of all arms, because not every arm has it: {', '.join(left_out)}")
    for tests, where in ((own.only_here, change(design, arm)), (control.only_here, "in the control")):
        kept = [test for test in tests if test not in left_out]
        if kept:
            notes.append(f"part of the treatment, as built: {', '.join(kept)} exists only {where}")
    return tuple(notes)


def explanations(
    design: Design, arms: tuple[ArmFinding, ...], prepared: dict[int, PreparedEvidence], cancelled: str | None
) -> tuple[str, ...]:
    """Return the explanations of a finding, most important first, each one sentence."""
    lines: list[str] = []
    if cancelled:
        lines.append(f"Cancelled: {cancelled}")
    for arm in arms:
        prefix = f"{arm.name}: " if len(arms) > 1 else ""
        if len(arms) > 1:
            lines.append(f"{prefix}{arm.verdict.value}. {arm.sentence}")
        if arm.difference is not None:
            lines.append(f"{prefix}failure rate control minus treated: {limits(arm.difference)}.")
        lines.extend(f"{prefix}{note}." for note in arm.notes)
        lines.extend(f"{prefix}{describe_check(check)}." for check in arm.counters[:6])
        if arm.method.startswith("sign test"):
            lines.append(f"{prefix}decided by the {arm.method}.")
        new = [row.test for row in arm.side_table if row.is_new and row.p_holm <= 0.05]
        if new:
            lines.append(f"{prefix}fails only in the treated arm: {', '.join(new)}.")
        if arm.verdict is Verdict.NOT_REPRODUCED:
            lines.append(f"{prefix}an arm that cannot reproduce a failure cannot exonerate anything.")
    lists = {arm.tests for arm in prepared.values()}
    if prepared and len(lists) == 1:
        lines.append(f"All arms have the same {len(next(iter(lists)))} tests in the same order.")
    if len({arm.commit for arm in design.arms}) == 1:
        lines.append(f"Both arms at commit {design.control.commit[:12]}.")
    return tuple(lines)


def more_blocks(decision: Decision, boundary: Boundary) -> int | None:
    """Return about how many more blocks would decide if the rates went on as they were; None when 1,000 would not."""
    control, treated = decision.control, decision.treated
    counts = BlockCounts(control.runs, control.match, control.other, treated.match, treated.other)
    return blocks_to_decide(boundary, counts)


def next_command(design: Design, head: ArmFinding) -> str:
    """Return the next decisive experiment as a command that can be pasted."""
    arm = design.arms[head.arm]
    own = tuple(item for item in arm.treatments if item not in design.control.treatments)
    tests = [
        test for item in own if item.kind in (TreatmentKind.EXCLUDE, TreatmentKind.INSERT_BEFORE) for test in item.tests
    ]
    kinds = {item.kind for item in own}
    match head.verdict:
        case Verdict.INCONCLUSIVE if head.reason is Reason.ARM_UNBUILDABLE:
            return shlex.join(["likewise", "suite", "check", "--project", design.project, "--suite", design.suite])
        case Verdict.INCONCLUSIVE if head.reason is Reason.CANCELLED:
            return _command(design, to_text(design.control.treatments) or None, to_text(arm.treatments) or "none")
        case Verdict.IMPLICATED if TreatmentKind.EXCLUDE in kinds:
            return _command(design, "alone", f"alone + before:{tests[0]}")
        case Verdict.WORSENED if TreatmentKind.INSERT_BEFORE in kinds:
            return _command(design, None, f"exclude:{tests[0]}")
        case Verdict.NOT_LIKE_FOR_LIKE if any(d.name == "tests" for d in head.differences) and kinds & {
            TreatmentKind.BUILD,
            TreatmentKind.COMMIT,
        }:
            return _command(design, None, to_text(own), "--tests", "as_built")
        case Verdict.INCONCLUSIVE if head.reason in (Reason.BLOCKS_MAX, Reason.FUTILITY, Reason.BUDGET):
            control = to_text(design.control.treatments) or None
            blocks = min(100, 2 * design.blocks_max)
            return _command(design, control, to_text(arm.treatments) or "none", "--blocks", str(blocks))
        case _ if is_aa(own) or TreatmentKind.ALONE not in kinds:
            return _command(design, None, "alone")
        case _:
            return _command(design, None, "order:seed=1")


def _command(design: Design, control: str | None, treat: str, *extra: str) -> str:
    words = [
        "likewise",
        "enqueue",
        "ab",
        "--project",
        design.project,
        "--suite",
        design.suite,
        "--victim",
        design.victim,
    ]
    if control:
        words += ["--control", control]
    return shlex.join([*words, "--treat", treat, *extra])
