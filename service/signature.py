"""The signature of a failure: what must be equal for two failures to be the same failure.

Outcome class, then exception type and failing expression, without what differs between two runs of the same
assertion. CI reports and experiments go through this one function, so their signatures can be compared.

    failed|AssertionError|assert # < #

The normalisation, in order: terminal escapes go; pytest's wrapper `failed on setup with "..."` goes; the exception
type is taken off the front of the message unless it was given; only the lines that state the failure stay (no trace,
no diff, no captured output); places become names (a path its last part, `file.cc:12` becomes `file.cc:#`); uuids,
addresses, times, hexadecimal words and temporary names become placeholders; every number becomes `#`, `nan` and
`inf` included, with its sign and its unit of time or size; a list of numbers becomes one `#`; long quoted text
becomes `'...'`. A digit inside a word (`int32`, `conv2d`) is part of the name and stays.
"""

from __future__ import annotations

import hashlib
import re

from gpu_runner.protocol import Outcome

_MOST_LINES = 8
_MOST_CHARACTERS = 400
_READ_CHARACTERS = 20_000
_QUOTED_CHARACTERS = 60

_FAILING = frozenset({Outcome.FAILED, Outcome.ERROR, Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.KILLED})
# What a time-out or the guard interrupted is an accident of the moment.
_BARE = frozenset({Outcome.TIMED_OUT, Outcome.KILLED})

_ESCAPES = re.compile(r"(?:\x1b|\ufffd|#x1B|\\x1b|\\u001b|\\033)\[[0-9;:?]*[A-Za-z]|\x1b[@-Z\\-_]", re.IGNORECASE)
_WRAPPER = re.compile(r'^failed on (?:setup|teardown) with "(.*)"$', re.DOTALL)
_TYPE = re.compile(
    r"^(?:E\s+)?((?:[A-Za-z_$][\w$]*\.)*[A-Za-z_$][\w$]*"
    r"(?:Error|Exception|Failure|Failed|Fault|Timeout|Interrupt|Exit|Warning|Expired|Abort))(?::\s*|\s*$)",
    re.MULTILINE,
)
_GENERIC_TYPES = frozenset({"", "failed", "failure", "error", "test failure", "test error", "failures"})
_PLACE_ONLY = re.compile(r"^\S+[.:]\w+:\d+(?::\d+)?:?\s*(?:Failure)?$")
# Lines from here on are trace, diff or output, not the failure itself.
_TRACE = re.compile(
    r"^\s*(?:at [\w.$<>/]+[ (]|Traceback \(|File \"|#\d+ |stack backtrace|note: run with|Stack(?:trace)?:|"
    r"-{5,}|={5,}|Full diff|Captured |Command Output|Caused by:)"
)
_ASSERT = re.compile(r"^\s*assert\b", re.MULTILINE)
_WHERE = re.compile(r"^\s*\+\s+(?:where|and)\b")

_SUBSTITUTIONS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b", "<uuid>"),
        (r"\b[a-z][a-z+.-]*://[^\s'\"<>)\]]+", "<url>"),
        (r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?)?(?:Z|\s?[+-]\d\d:?\d\d|\s?UTC)?", "<time>"),
        (r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? [\w ]{5,12} \d\d:\d\d:\d\d(?: \d{4})?(?: \w{3,4}\b)?", "<time>"),
        (r"\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?\b", "<time>"),
        (r"(?:[A-Za-z]:)?(?:[\\/][\w.+@~=-]+)+[\\/]([\w.+@~=-]+)", r"\1"),
        (r"(?<![\w.])(?:\.{1,2}/)?(?:[\w.+@~=-]+/)+([\w+@~=-]+\.[A-Za-z]\w{0,4})\b", r"\1"),
        (r"(?<![\w/])/(?:tmp|dev|proc|run)/([\w.+@~=-]+)", r"\1"),
        (r"\b(?:tmp[a-z0-9_]{6,}|pytest-\d+)\b", "<tmp>"),
        (r"\b0[xX][0-9a-fA-F]+\b", "#"),
        (r"(?<![\w.])(?=[0-9a-fA-F]*[a-fA-F])(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{7,}(?![\w.])", "<hex>"),
        (r"\bgw\d+\b", "gw#"),
        (r"(?<![\w.)\]}])[-+]?(?:nan|NaN|inf|Infinity|Inf)\b(?!-)", "#"),
        (
            r"(?:(?<![\w.)\]}#])[-+])?(?<![A-Za-z_])(?<![A-Za-z_]\d)(?:(?<!\w)\.\d|(?<!\w)\d)"
            r"(?:[\d_]|[.,](?=\d))*\.?(?:[eE][-+]?\d+)?j?(?![A-Za-z_]{2}\w*\d)",
            "#",
        ),
        (r"#\s?(?:ns|us|µs|ms|s|secs?|seconds?|mins?|minutes?|h|hours?)\b", "#"),
        (r"#\s?(?:B|[kKMGT]i?B|bytes)\b", "#"),
        (r"#%", "#"),
        (r"#(?:(?:\s*,\s*|\s+)#)+", "#"),
        (r"[\[(]\s*#\s*,?\s*[\])](?:\s*,\s*[\[(]\s*#\s*,?\s*[\])])+", "[#]"),
    )
)
_QUOTED = re.compile(r"'(?:[^'\\\n]|\\.){%d,}'|\"(?:[^\"\\\n]|\\.){%d,}\"" % (_QUOTED_CHARACTERS, _QUOTED_CHARACTERS))
_SIGNALS = tuple(
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in (
        (r"sig(?:nal)? ?segv|seg(?:mentation)? ?fault|signal:? 11\b|exit (?:code|status):? (?:-11|139)\b", "SIGSEGV"),
        (r"sig ?abrt|abort(?:ed)?\b|signal:? 6\b|exit (?:code|status):? (?:-6|134)\b", "SIGABRT"),
        (r"sig ?kill|\bkilled\b|signal:? 9\b|exit (?:code|status):? (?:-9|137)\b", "SIGKILL"),
        (r"sig ?bus|bus error|signal:? (?:7|10)\b|exit (?:code|status):? (?:-7|135)\b", "SIGBUS"),
        (r"sig ?fpe|floating point exception|numerical|signal:? 8\b|exit (?:code|status):? (?:-8|136)\b", "SIGFPE"),
        (r"sig ?ill\b|illegal(?: instruction)?|signal:? 4\b|exit (?:code|status):? (?:-4|132)\b", "SIGILL"),
        (r"sig ?term|\bterminated\b|signal:? 15\b|exit (?:code|status):? (?:-15|143)\b", "SIGTERM"),
    )
)


def failure_signature(outcome: Outcome, failure_type: str | None, message: str | None) -> str:
    """Return the signature of a failure, empty for an outcome that is not one.

    Other numbers, addresses, paths and times give the same signature; another expression or exception another one.

    >>> failure_signature(Outcome.FAILED, None, "assert 0.314 < 0.1")
    'failed|AssertionError|assert # < #'
    >>> failure_signature(Outcome.FAILED, "AssertionError", "AssertionError: assert -1e-05 < 12")
    'failed|AssertionError|assert # < #'
    >>> failure_signature(Outcome.FAILED, None, "assert 0.314 > 0.1")
    'failed|AssertionError|assert # > #'
    >>> failure_signature(Outcome.ERROR, "torch.OutOfMemoryError", "Tried to allocate 2.00 GiB. GPU 0 has 96 MiB free")
    'error|OutOfMemoryError|Tried to allocate #. GPU # has # free'
    >>> failure_signature(Outcome.FAILED, "", "/ci/a/x_test.cc:50\\nExpected equality of these values:\\n  f(1)\\n  2")
    'failed||x_test.cc:# Expected equality of these values: f(#) #'
    >>> failure_signature(Outcome.CRASHED, None, "***Exception: SegFault")
    'crashed|SIGSEGV|'
    >>> failure_signature(Outcome.TIMED_OUT, None, "Timeout >600.0s")
    'timed_out||'
    >>> failure_signature(Outcome.PASSED, None, None)
    ''
    """
    if outcome not in _FAILING:
        return ""
    if outcome in _BARE:
        return f"{outcome.value}||"
    text = _ESCAPES.sub("", (message or "")[:_READ_CHARACTERS]).replace("\r\n", "\n").strip()
    wrapped = _WRAPPER.match(text)
    text = wrapped.group(1).strip() if wrapped else text
    if outcome is Outcome.CRASHED:
        known = _signal(f"{failure_type or ''} {text}")
        if known:
            return f"{outcome.value}|{known}|"
    kind, text = _split_type(failure_type, text)
    return f"{outcome.value}|{kind}|{_shorten(normalised(text))}"


def normalised(text: str) -> str:
    """Return the lines that state the failure, on one line, without what differs from run to run.

    >>> normalised("assert 3 == 4\\n +  where 3 = len([1, 2, 3])\\n  Full diff: ...")
    'assert # == # + where # = len([#])'
    >>> normalised("tensor(0.31, device='cuda:0') not close after 80.8us at 0x7f3a5c001230")
    "tensor(#, device='cuda:#') not close after # at #"
    >>> normalised("int32 differs from int64 in conv2d of /home/ci/src/op.py:12")
    'int32 differs from int64 in conv2d of op.py:#'
    """
    lines = _stating_lines(text)
    text = "\n".join(lines)
    for pattern, replacement in _SUBSTITUTIONS:
        text = pattern.sub(replacement, text)
    text = _QUOTED.sub("'...'", text)
    return " ".join(text.split())


def _stating_lines(text: str) -> list[str]:
    lines: list[str] = []
    is_assert = _ASSERT.search(text) is not None
    seen_assert = False
    for line in text.split("\n"):
        stripped = line.strip()
        if _TRACE.match(line):
            break
        if not stripped:
            if lines and not all(_PLACE_ONLY.match(kept) for kept in lines):
                break
            continue
        if is_assert and seen_assert and not _WHERE.match(line):
            # Below an assertion pytest explains the values; only where they came from is part of the assertion.
            continue
        seen_assert = seen_assert or _ASSERT.match(line) is not None
        lines.append(stripped)
        if len(lines) == _MOST_LINES:
            break
    return lines


def _split_type(failure_type: str | None, text: str) -> tuple[str, str]:
    given = (failure_type or "").strip()
    kind = "" if given.lower() in _GENERIC_TYPES else given.rpartition(".")[2] if _is_dotted(given) else given
    front = _TYPE.match(text)
    if front:
        named = front.group(1).rpartition(".")[2]
        if not kind or kind == named:
            kind = named
            text = text[front.end() :]
    if not kind and _ASSERT.match(text):
        kind = "AssertionError"
    return " ".join(kind.split()), text


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() or "$" in part for part in name.split("."))


def _signal(text: str) -> str:
    return next((name for pattern, name in _SIGNALS if pattern.search(text)), "")


def _shorten(text: str) -> str:
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[:_MOST_CHARACTERS]}...{hashlib.sha256(text.encode()).hexdigest()[:8]}"
