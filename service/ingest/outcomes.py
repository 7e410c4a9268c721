"""The outcome of one case from its children and its producer's own state words."""

from __future__ import annotations

import re

from gpu_runner.protocol import Outcome

# States in `status` or `result` in which the producer did not want the test to count.
TOLERATED = frozenset({"disabled", "suppressed", "todo", "known_failure", "knownfailure", "xfail", "expected_failure"})
_SKIPPED = frozenset({"skipped", "skip", "ignored", "pending", "notrun", "not_run", "not run", "deselected", "blocked"})
_FAILED = frozenset({"failed", "fail", "failure", "broken"})
_ERROR = frozenset({"error", "errored", "incomplete", "unfinished", "running", "aborted", "started"})
_TIMED_OUT = frozenset({"timeout", "timedout", "timed_out", "timed out"})
_CRASHED = frozenset({"crashed", "crash", "segfault"})
_XFAIL = re.compile(r"pytest\.xfail|^xfail|expected[ _-]?fail", re.IGNORECASE)
# ctest writes these for tests that it wanted to run and could not.
_COULD_NOT_RUN = re.compile(
    r"^(?:Unable to find executable|Fixture dependency failed|Required Files Missing|"
    r"Insufficient resources|Failed to start|Process failed to start|BAD_COMMAND)"
)
# The framework's own limit on a test; an exception such as TimeoutError may come from what is tested.
_TIMEOUT_TYPE = re.compile(r"^(?:test )?time(?:d)?[ _-]?out$|TestTimedOutException$", re.IGNORECASE)
_TIMEOUT_MESSAGE = re.compile(
    r"^(?:Failed: )?Timeout \(?>[\d.]+s?\)?|^(?:\*\*\*)?Timeout$|^test timed out after \d|^\S+\(\) timed out after \d|"
    r"^Reached timeout of \d|^panic: test timed out after|^\s*(?:Error: )?(?:Test )?timeout of \d+ ?ms exceeded|"
    r"Exceeded timeout of \d+ ms for a test",
    re.IGNORECASE | re.MULTILINE,
)
_CRASH_TYPE = re.compile(r"^(?:SIG[A-Z]{2,5}|test abort|crash(?:ed)?|segfault|segmentation fault)\b", re.IGNORECASE)
_CRASH_MESSAGE = re.compile(
    r"worker '?\w+'? crashed while running|^(?:\*\*\*)?Exception: (?:SegFault|Illegal|Numerical|Bus)|"
    r"^Subprocess aborted|"
    r"^(?:fatal )?signal:? \d+ |SIGSEGV - Segmentation violation|^Segmentation fault|^The forked VM terminated",
    re.IGNORECASE,
)


def failure_outcome(kind: str, failure_type: str, message: str) -> Outcome:
    """Return what a failure or error element stands for; crashes and time-outs are told by type, then by message.

    >>> failure_outcome("failure", "test timeout", "")
    <Outcome.TIMED_OUT: 'timed_out'>
    >>> failure_outcome("error", "", "worker 'gw0' crashed while running 'test_a.py::test_x'")
    <Outcome.CRASHED: 'crashed'>
    """
    head = message.lstrip()
    if _TIMEOUT_TYPE.search(failure_type) or _TIMEOUT_MESSAGE.search(head):
        return Outcome.TIMED_OUT
    if _CRASH_TYPE.match(failure_type) or _CRASH_MESSAGE.search(head):
        return Outcome.CRASHED
    return Outcome.ERROR if kind == "error" else Outcome.FAILED


def tolerated(outcome: Outcome, status: str) -> Outcome:
    """Return the outcome as the producer's state lets it count: a tolerated failure is an expected one."""
    return Outcome.EXPECTED_FAILURE if status.lower() in TOLERATED else outcome


def skipped_outcome(skip_type: str, message: str) -> Outcome:
    """Return what a skipped element stands for: a skip, an expected failure, or a test that could not start.

    >>> skipped_outcome("pytest.xfail", "known"), skipped_outcome("", "Unable to find executable")
    (<Outcome.EXPECTED_FAILURE: 'expected_failure'>, <Outcome.NOT_RUN: 'not_run'>)
    """
    if _XFAIL.search(skip_type):
        return Outcome.EXPECTED_FAILURE
    return Outcome.NOT_RUN if _COULD_NOT_RUN.match(message) else Outcome.SKIPPED


def state_outcome(status: str, result: str) -> Outcome:
    """Return the outcome of a case without children, from its `status` and `result` attributes.

    >>> state_outcome("notrun", "suppressed"), state_outcome("run", "completed"), state_outcome("FAIL", "")
    (<Outcome.SKIPPED: 'skipped'>, <Outcome.PASSED: 'passed'>, <Outcome.FAILED: 'failed'>)
    """
    words = {status.strip().lower(), result.strip().lower()}
    for states, outcome in (
        (_CRASHED, Outcome.CRASHED),
        (_TIMED_OUT, Outcome.TIMED_OUT),
        (_ERROR, Outcome.ERROR),
        (_FAILED, Outcome.FAILED),
        (TOLERATED | _SKIPPED, Outcome.SKIPPED),
    ):
        if not words.isdisjoint(states):
            return outcome
    return Outcome.PASSED
