"""A treated arm beside the control, as the evidence page shows it."""

from __future__ import annotations

from markupsafe import Markup

from service.domain import Verdict
from service.experiments.explain import percent, under
from service.experiments.model import CounterCheck, Counts, Interval, TestRow
from service.experiments.treatments import is_aa
from service.history.progress import Comparison, ExperimentView
from service.web import figures
from service.web.contexts import CheckRow, ComparisonPanel, Outcomes, TestLine
from service.web.words import VERDICTS, p_text, points

_HOLDS = {True: ("as expected", "clear"), False: ("not as expected", "cause"), None: ("cannot be told", "caution")}


def panel(view: ExperimentView, comparison: Comparison) -> ComparisonPanel:
    """Return the panel of one treated arm."""
    finding = comparison.finding
    control, treated = comparison.control, comparison.treated
    first = view.arms[0].words
    checks = tuple(_check(check) for check in finding.counters) if finding else ()
    tests = tuple(_test(row) for row in finding.side_table) if finding else ()
    figure, words = _interval(comparison)
    share, share_words = _share(comparison)
    return ComparisonPanel(
        name=comparison.name,
        badge=VERDICTS[finding.verdict] if finding else None,
        sentence=finding.sentence if finding and len(view.comparisons) > 1 else "",
        outcomes=(_outcomes(_capital(first), control), _outcomes(_capital(comparison.change), treated)),
        interval=figure,
        interval_words=words,
        share=share,
        share_words=share_words,
        acted=_acted(view, comparison),
        checks=checks,
        tests=tests,
        tests_words=_tests_words(tests, has_ended=finding is not None and finding.control.runs > 0),
        notes=tuple(note for note in finding.notes) if finding and len(view.comparisons) > 1 else (),
    )


def _outcomes(label: str, counts: Counts) -> Outcomes:
    if not counts.runs:
        return Outcomes(label, "no run counted", "", None)
    other = f"{counts.other} ended another way" if counts.other else ""
    return Outcomes(label, f"failed {counts.match} of {counts.runs}", other, figures.bar(counts, label))


def _interval(comparison: Comparison) -> tuple[Markup | None, str]:
    found, control, treated = comparison.difference, comparison.control, comparison.treated
    if found is None:
        return None, ""
    estimate = control.match / control.runs - treated.match / treated.runs
    limits = f"{points(found.lower)} to {points(found.upper)} points"
    words = (
        f"{_lower(estimate, under(comparison.change))}: {percent(found.confidence)} interval {limits}, {found.method}."
    )
    if _has_no_zero(found):
        words += " The interval stays clear of “no difference”."
    if comparison.finding is None:
        words += " It is shown while it runs and decides nothing; the exact boundary does."
    label = f"Failure rate of the control minus that of the treated arm: {points(estimate)}, {limits}"
    return figures.interval(found, estimate, label), words


def _lower(estimate: float, change: str) -> str:
    size = abs(round(100 * estimate))
    if size == 0:
        return f"The failure rate is the same {change}"
    return f"The failure rate is {size} points {'lower' if estimate > 0 else 'higher'} {change}"


def _has_no_zero(found: Interval) -> bool:
    return (found.lower is not None and found.lower > 0) or (found.upper is not None and found.upper < 0)


def _share(comparison: Comparison) -> tuple[str, str]:
    finding = comparison.finding
    if finding is None or finding.share_estimate is None or finding.share_explained is None:
        return "", ""
    limits = finding.share_explained
    low = "below any bound" if limits.lower is None else percent(limits.lower)
    high = "above any bound" if limits.upper is None else percent(limits.upper)
    limits_words = f"{percent(limits.confidence)} interval {low} to {high}, {limits.method}"
    words = f"of the failures are explained by it ({limits_words})"
    if finding.treated.match:
        words += "; it contributes, it is not the sole cause"
    return percent(finding.share_estimate), words


def _acted(view: ExperimentView, comparison: Comparison) -> str:
    """Return in words how it is known that the treatment happened."""
    arm = view.design.arms[comparison.arm]
    finding = comparison.finding
    if is_aa(arm.treatments):
        return "Nothing is changed on purpose (A/A): there is nothing to check."
    if finding is not None and finding.verdict is Verdict.TREATMENT_INERT and not finding.counters:
        return "Trees, artefacts and test lists are equal, and no counter moved: nothing happened."
    if finding is not None and finding.counters:
        return "Counters of the first complete block, as the suite reported them:"
    control, treated = view.arms[0].tests, view.arms[comparison.arm].tests
    if control is not None and treated is not None and control != treated:
        return f"The lists show it: the control runs {control} tests, this arm {treated}."
    if finding is None:
        return "Checked after the first complete block."
    return "Trees, builds or test lists of the two arms differ as declared; no counter was needed."


def _check(check: CounterCheck) -> CheckRow:
    words, tone = _HOLDS[check.holds]
    if check.before == 0 and check.after == 0:
        words = f"{words}: never called in either arm"
    before, after = ("not reported" if value is None else f"{value:,}" for value in (check.before, check.after))
    return CheckRow(check.counter, check.expected, before, after, words, tone)


def _test(row: TestRow) -> TestLine:
    return TestLine(
        test=row.test,
        control=_failures(row.control),
        treated=_failures(row.treated),
        where="new" if row.is_new else "in the control only" if row.treated[0] == 0 else "in both",
        tone="caution" if row.is_new else "quiet",
        p_value=p_text(row.p_holm),
    )


def _failures(counts: tuple[int, int]) -> str:
    return f"{counts[0]} of {counts[1]}" if counts[1] else "did not run"


def _tests_words(tests: tuple[TestLine, ...], *, has_ended: bool) -> str:
    if not has_ended:
        return ""
    if not tests:
        return "No other test failed in either arm."
    new = sum(test.where == "new" for test in tests)
    return f"{new} failing in the treated arm only, {len(tests) - new} in the control too."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
