"""Why a report names one test several times: retries, repeats, rows of data, browsers.

"Twice the same name" has many meanings in real reports, and a wrong guess invents a flaky test or hides one. So a
retry is recognised by what only a retry can look like, and everything else is kept as a row of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpu_runner.protocol import Outcome
from service.domain import FAILING
from service.ingest.identity import TestIdentity
from service.ingest.report import CaseResult, Repetition

if TYPE_CHECKING:
    from service.ingest.cases import Suite
    from service.ingest.document import Document

_NOT_RAN = frozenset({Outcome.SKIPPED, Outcome.NOT_RUN})


@dataclass(frozen=True, slots=True)
class Written:
    """How a case was written, as far as its outcome does not tell.

    `is_bare`: without any word about its outcome. `is_silent_skip`: skipped, without saying why.
    """

    suite: Suite
    is_bare: bool
    is_pytest: bool
    is_silent_skip: bool = False
    has_reruns: bool = False


def settle(document: Document, results: list[CaseResult], written: Sequence[Written]) -> list[CaseResult]:
    """Return the results with attempts numbered, rows and browsers told apart, and hidden failures made visible.

    `results` and `written` go together by index. Two results of one file never end with the same identity and attempt.
    """
    groups = _groups(results)
    if not groups:
        return results
    if any(len({written[i].suite.hostname for i in group}) > 1 and not written[group[0]].is_pytest for group in groups):
        results = [
            replace(result, identity=replace(result.identity, variant=written[i].suite.hostname))
            for i, result in enumerate(results)
        ]
        groups = _groups(results)
    by_suite: dict[int, list[list[int]]] = {}
    for group in groups:
        within: dict[int, list[int]] = {}
        for i in group:
            within.setdefault(id(written[i].suite), []).append(i)
        for suite, indices in within.items():
            if len(indices) > 1 and not written[indices[0]].has_reruns:
                by_suite.setdefault(suite, []).append(indices)
    unknown = inferred = 0
    for suite_groups in by_suite.values():
        kind = _Kind.of(results, written, suite_groups)
        for indices in suite_groups:
            if _is_one_place(results, indices):
                # Several results of one source line are one test; `_number` calls them repeats.
                continue
            if kind.is_retry and results[indices[0]].identity.name:
                hidden = _retry(results, written, indices, hidden=kind.hidden)
                unknown += hidden if kind.hidden is Outcome.UNKNOWN else 0
                inferred += hidden if kind.hidden is not Outcome.UNKNOWN else 0
            else:
                for row, i in enumerate(indices[1:], 2):
                    results[i] = _as_row(results[i], row)
                results[indices[0]] = replace(results[indices[0]], repetition=Repetition.ROW)
    if inferred:
        word = "case stands for an attempt" if inferred == 1 else "cases stand for attempts"
        document.warn(f"{inferred} {word} that failed before a retry, though nothing in it says so")
    if unknown:
        word = "case" if unknown == 1 else "cases"
        document.warn(f"{unknown} {word} may hide a failure before a retry: the outcome is unknown")
    results = _without_teardown_doubles(results, written)
    _number(results)
    return results


def _groups(results: Sequence[CaseResult]) -> list[list[int]]:
    """Return the indices of the results that share an identity, for every identity that occurs more than once."""
    first: dict[tuple[str, str], int] = {}
    suspects: dict[tuple[str, str], list[int]] = {}
    for i, result in enumerate(results):
        key = (result.identity.name, result.identity.classname)
        at = first.setdefault(key, i)
        if at != i:
            suspects.setdefault(key, [at]).append(i)
    groups: dict[TestIdentity, list[int]] = {}
    for i in sorted(i for indices in suspects.values() for i in indices):
        groups.setdefault(results[i].identity, []).append(i)
    return [indices for indices in groups.values() if len(indices) > 1]


@dataclass(frozen=True, slots=True)
class _Kind:
    """What the repeated names of one suite are; `hidden` is the outcome of an attempt that was written bare."""

    is_retry: bool
    hidden: Outcome = Outcome.FAILED

    @classmethod
    def of(cls, results: Sequence[CaseResult], written: Sequence[Written], groups: Sequence[list[int]]) -> _Kind:
        """Judge a suite by all its repeated names: one that cannot be a retry shows that its tool repeats names."""
        suite = written[groups[0][0]].suite
        if written[groups[0][0]].is_pytest:
            # pytest makes its ids unique, so only a retry repeats one; it retries nothing but failures.
            return cls(is_retry=True)
        has_fewer = suite.declared is not None and suite.declared < suite.held
        shapes = {_shape(results, written, group) for group in groups}
        if "other" in shapes:
            return cls(is_retry=False)
        if has_fewer and shapes & {"hidden", "bare"}:
            # pytest-rerunfailures 16.6.1 writes like this, and its kind may: all but the last attempt bare.
            return cls(is_retry=True, hidden=Outcome.FAILED if "hidden" in shapes else Outcome.UNKNOWN)
        return cls(is_retry="bare" not in shapes and "hidden" not in shapes)


def _shape(results: Sequence[CaseResult], written: Sequence[Written], group: Sequence[int]) -> str:
    """Return `failed` (each attempt but the last says that it failed), `hidden`, `bare` or `other`."""
    *earlier, last = group
    if all(results[i].outcome in FAILING or _is_testng_retry(results[i], written[i]) for i in earlier):
        return "other" if results[last].outcome in _NOT_RAN else "failed"
    if all(written[i].is_bare for i in earlier):
        if written[last].is_bare:
            return "bare"
        return "hidden" if results[last].outcome in FAILING else "other"
    return "other"


def _is_one_place(results: Sequence[CaseResult], indices: Sequence[int]) -> bool:
    """Return whether the results are of one source line and not all failed before the last: run again, not rows."""
    places = {(results[i].file, results[i].line) for i in indices}
    passed_before = any(results[i].outcome is Outcome.PASSED for i in indices[:-1])
    return len(places) == 1 and results[indices[0]].line is not None and passed_before


def _is_testng_retry(result: CaseResult, written: Written) -> bool:
    """Return whether this is an attempt that TestNG retried: skipped without a word, though it took time."""
    return written.is_silent_skip and result.outcome is Outcome.SKIPPED and bool(result.duration_s)


def _retry(results: list[CaseResult], written: Sequence[Written], indices: Sequence[int], *, hidden: Outcome) -> int:
    """Make the results at `indices` attempts of one test; return how many outcomes had to be inferred."""
    changed = 0
    *earlier, last = indices
    for i in earlier:
        if written[i].is_bare or _is_testng_retry(results[i], written[i]):
            outcome = hidden if written[i].is_bare else Outcome.FAILED
            results[i] = replace(results[i], outcome=outcome, is_inferred=True, repetition=Repetition.RETRY)
            changed += 1
        else:
            results[i] = replace(results[i], repetition=Repetition.RETRY)
    results[last] = replace(results[last], repetition=Repetition.RETRY)
    return changed


def _as_row(result: CaseResult, row: int) -> CaseResult:
    """Return the result as that of the `row`-th test with this name."""
    variant = f"{result.identity.variant}, row {row}" if result.identity.variant else f"row {row}"
    return replace(result, identity=replace(result.identity, variant=variant), repetition=Repetition.ROW)


def _without_teardown_doubles(results: list[CaseResult], written: Sequence[Written]) -> list[CaseResult]:
    """Return the results with pytest's second case for a test that failed and then broke in teardown joined to it."""
    kept: list[CaseResult] = []
    for i, result in enumerate(results):
        before = kept[-1] if kept else None
        if (
            before is not None
            and written[i].is_pytest
            and result.identity == before.identity
            and before.outcome in FAILING
            and not before.is_inferred
            and (result.message or "").startswith("failed on teardown")
        ):
            joined = "\n\n".join(text for text in (before.detail, result.message, result.detail) if text)
            kept[-1] = replace(before, detail=joined)
            continue
        kept.append(result)
    return kept if len(kept) == len(results) else [replace(result, position=i) for i, result in enumerate(kept)]


def _number(results: list[CaseResult]) -> None:
    """Number the attempts of each identity in the order of the file."""
    latest: dict[TestIdentity, int] = {}
    for i, result in enumerate(results):
        attempt = latest.get(result.identity, 0) + 1
        latest[result.identity] = attempt
        repetition = result.repetition
        if attempt > 1 and repetition is Repetition.SINGLE:
            repetition = Repetition.REPEAT
        if attempt != result.attempt or repetition is not result.repetition:
            results[i] = replace(result, attempt=attempt, repetition=repetition)
