r"""The signature of a failure: what must be equal for two failures to be the same failure.

Three parts, `outcome|exception type|failing expression`, without what differs between two runs of the same assertion.
CI reports and experiments go through this one function, so their signatures can be compared:

    failed|AssertionError|assert # < #

The normalisation, in order:

1. Terminal escapes go, and pytest's wrapper `failed on setup with "..."`.
2. The exception type is taken off the front of the message; of a dotted type the last part counts.
3. The lines that state the failure stay, at most eight; trace, diff and captured output go. Below a Python `assert`
   only the lines `+  where` stay, which say where the values came from.
4. A path becomes its last part; uuids, addresses of the web, times, long hexadecimal words and temporary names
   become placeholders.
5. Every number becomes `#`, `nan` and `inf` included, with its sign and its unit of time or size; numbers in a row
   become one `#`. A digit inside a word (`int32`, `conv2d`) belongs to a name and stays.
6. Quoted text of 60 characters and more becomes `'...'`; shorter text, such as a key, stays.

A crash with a known signal is that signal. A time-out or a kill has no expression: what was interrupted is chance.
"""

from __future__ import annotations

import hashlib
import re

from gpu_runner.protocol import Outcome

_MOST_LINES = 8
_MOST_CHARACTERS = 400
_READ_CHARACTERS = 20_000
_STATED_CHARACTERS = 4_000

_FAILING = frozenset({Outcome.FAILED, Outcome.ERROR, Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.KILLED})
_INTERRUPTED = frozenset({Outcome.TIMED_OUT, Outcome.KILLED})

# As the byte itself, as U+FFFD where a reader replaced it, and as producers spell it.
_ESCAPES = re.compile(r"(?:\x1b|\ufffd|#x1b|\\x1b|\\u001b|\\033)\[[0-9;:?]*[a-z]|\x1b[@-Z\\-_]", re.IGNORECASE)
_WRAPPER = re.compile(r'^failed on (?:setup|teardown) with "(.*)"$', re.DOTALL)
_TYPE = re.compile(
    r"(?:E\s+)?((?:[A-Za-z_$][\w$]*\.)*(?:[A-Za-z_$][\w$]*)?"
    r"(?:Error|Exception|Failure|Failed|Fault|Timeout|Interrupt|Exit|Iteration|Warning|Expired|Abort))"
    r"(?::[ \t]*|[ \t]*(?:\n|$))"
)
_NO_TYPES = frozenset({"", "failure", "error", "test failure", "test error"})
_PLACE = re.compile(r"^\S+[.:]\w+:\d+(?::\d+)?:?\s*(?:Failure)?$")
_TRACE = re.compile(
    r"^\s*(?:at [\w.$<>/]+[ (]|Traceback \(|File \"|#\d+ |stack backtrace|note: run with|Stack(?:trace)?:|"
    r"-{5,}|={5,}|Full diff|Captured |Command Output|Caused by:)"
)
# What Go prints around every test.
_NOISE = re.compile(r"^\s*(?:=== (?:RUN|PAUSE|CONT|NAME)\b|--- (?:FAIL|PASS|SKIP): )")
_ASSERT = re.compile(r"^\s*assert\b", re.MULTILINE)
_WHERE = re.compile(r"^\s*\+\s+(?:where|and)\b")

_SUBSTITUTIONS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b", "<uuid>"),
        (r"\b[a-z][a-z+.-]{1,20}://[^\s'\"<>)\]]+", "<url>"),
        (r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?)?(?:Z\b|\s?[+-]\d\d:?\d\d\b|\s?UTC\b)?", "<time>"),
        (r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? [\w ]{5,12} \d\d:\d\d:\d\d(?: \d{4})?(?: (?:UTC|GMT))?", "<time>"),
        (r"\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?\b", "<time>"),
        (r"\b[A-Za-z]:(?:\\[\w.+@~=-]+)*\\([\w.+@~=-]+)", r"\1"),
        (r"(?<![\w)\].])(?:/[\w.+@~=-]+)+/([\w.+@~=-]+)", r"\1"),
        (r"(?<![\w./+@~=-])(?:\.{1,2}/)?(?:[\w+@~=-][\w.+@~=-]*/)+([\w+@~=-]+\.[A-Za-z]\w{0,4})\b", r"\1"),
        (r"\b(?:tmp[a-z0-9_]{6,}|pytest-\d+)\b", "<tmp>"),
        (r"\b0[xX][0-9a-fA-F]+\b", "#"),
        (r"(?<![\w.])(?=[0-9a-fA-F]*[a-fA-F])(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{7,}(?![\w.])", "<hex>"),
        (r"\bgw\d+\b", "gw#"),
        (r"(?<![\w.)\]}])[-+]?(?:nan|NaN|inf|Infinity|Inf)\b", "#"),
        (r"(?:(?<![\w.)\]}#])[-+])?(?<!\w)\.?\d(?:[\d_]|[.,](?=\d))*\.?(?:[eE][-+]?\d+)?j?", "#"),
        (r"#\s?(?:ns|us|µs|ms|s|secs?|seconds?|mins?|minutes?|h|hours?|B|[kKMGT]i?B|bytes)\b", "#"),
        (r"#\s?%", "#"),
        (r"(?:(?<!\.)\.{2,}\s*)?#(?:[\s,.]*#)*(?:\s*\.{2,})?", "#"),
        (r"[\[(]\s*#\s*,?\s*[\])](?:\s*,\s*[\[(]\s*#\s*,?\s*[\])])+", "[#]"),
        (r"""(?<!\w)(?:'(?:[^'\\\n]|\\.){60,}'|"(?:[^"\\\n]|\\.){60,}")""", "'...'"),
    )
)
_SIGNALS = tuple(
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in (
        (r"sig ?segv|seg(?:mentation)? ?fault|signal:? 11\b|exit (?:code|status):? (?:-11|139)\b", "SIGSEGV"),
        (r"sig ?abrt|abort(?:ed)?\b|signal:? 6\b|exit (?:code|status):? (?:-6|134)\b", "SIGABRT"),
        (r"sig ?kill|\bkilled\b|signal:? 9\b|exit (?:code|status):? (?:-9|137)\b", "SIGKILL"),
        (r"sig ?bus|bus error|signal:? (?:7|10)\b|exit (?:code|status):? (?:-7|135)\b", "SIGBUS"),
        (r"sig ?fpe|floating point exception|numerical|signal:? 8\b|exit (?:code|status):? (?:-8|136)\b", "SIGFPE"),
        (r"sig ?ill\b|illegal|signal:? 4\b|exit (?:code|status):? (?:-4|132)\b", "SIGILL"),
        (r"sig ?term|\bterminated\b|signal:? 15\b|exit (?:code|status):? (?:-15|143)\b", "SIGTERM"),
    )
)


def failure_signature(outcome: Outcome, failure_type: str | None, message: str | None) -> str:
    r"""Return the signature of a failure, at most about 500 characters; empty for an outcome that is not a failure.

    `failure_type` and `message` are the framework's own words; a type that only stands at the front of the message
    is found there.

    >>> failure_signature(Outcome.FAILED, None, "assert 0.314 < 0.1")
    'failed|AssertionError|assert # < #'
    >>> failure_signature(Outcome.FAILED, "builtins.AssertionError", "AssertionError: assert -1e-05 < 12")
    'failed|AssertionError|assert # < #'
    >>> failure_signature(Outcome.FAILED, None, "assert 0.314 > 0.1")
    'failed|AssertionError|assert # > #'
    >>> failure_signature(Outcome.ERROR, "torch.OutOfMemoryError", "Tried to allocate 2.00 GiB. GPU 0 has 96 MiB free")
    'error|OutOfMemoryError|Tried to allocate #. GPU # has # free'
    >>> failure_signature(Outcome.FAILED, "", "/ci/a/x_test.cc:50\nExpected equality of these values:\n  f(1)\n  2")
    'failed||x_test.cc:# Expected equality of these values: f(#) #'
    >>> failure_signature(Outcome.CRASHED, None, "Exception: SegFault")
    'crashed|SIGSEGV|'
    >>> failure_signature(Outcome.TIMED_OUT, None, "Timeout >600.0s")
    'timed_out||'
    >>> failure_signature(Outcome.PASSED, None, None)
    ''
    """
    if outcome not in _FAILING:
        return ""
    if outcome in _INTERRUPTED:
        return f"{outcome.value}||"
    text = _ESCAPES.sub("", (message or "")[:_READ_CHARACTERS]).replace("\r\n", "\n").strip()
    wrapped = _WRAPPER.match(text)
    text = wrapped.group(1).strip() if wrapped else text
    if outcome is Outcome.CRASHED:
        words = f"{failure_type or ''} {text}"
        signal = next((name for pattern, name in _SIGNALS if pattern.search(words)), None)
        if signal:
            return f"{outcome.value}|{signal}|"
    kind, text = _split_type(failure_type or "", text)
    return f"{outcome.value}|{kind}|{_shorten(normalised(text))}"


def normalised(text: str) -> str:
    r"""Return the lines that state the failure, on one line, without what differs from run to run.

    >>> normalised("assert 3 == 4\n +  where 3 = len([1, 2, 3])\n  At index 2 diff: 3 != 4")
    'assert # == # + where # = len([#])'
    >>> normalised("tensor(0.31, device='cuda:0') not close after 80.8us at 0x7f3a5c001230")
    "tensor(#, device='cuda:#') not close after # at #"
    >>> normalised("int32 differs from int64 in conv2d of /home/ci/src/op.py:12 at 2026-01-02 03:04:05")
    'int32 differs from int64 in conv2d of op.py:# at <time>'
    >>> normalised("array([nan, -1.5, ..., 2e-3]) is not in [[1, 2], [3, 4]]")
    'array([#]) is not in [[#]]'
    """
    text = "\n".join(_stating_lines(text))[:_STATED_CHARACTERS]
    for pattern, replacement in _SUBSTITUTIONS:
        text = pattern.sub(replacement, text)
    return " ".join(text.split())


def _stating_lines(text: str) -> list[str]:
    """Return the lines that say what failed; a place alone in its line does not end them."""
    lines: list[str] = []
    is_below_assert = False
    for line in text.split("\n"):
        stripped = line.strip()
        if _TRACE.match(line) or len(lines) == _MOST_LINES:
            break
        if _NOISE.match(line):
            continue
        if not stripped:
            if all(_PLACE.match(kept) for kept in lines):
                continue
            break
        if is_below_assert and not _WHERE.match(line):
            continue
        is_below_assert = is_below_assert or _ASSERT.match(line) is not None
        lines.append(stripped)
    return lines


def _split_type(failure_type: str, text: str) -> tuple[str, str]:
    """Return the exception type and the message without it."""
    kind = " ".join(failure_type.split())
    if kind.lower() in _NO_TYPES:
        kind = ""
    elif all(part.replace("$", "_").isidentifier() for part in kind.split(".")):
        kind = kind.rpartition(".")[2]
    kind = kind.rpartition("\\")[2]
    front = _TYPE.match(text)
    if front:
        named = front.group(1).rpartition(".")[2]
        if not kind or kind == named:
            return named, text[front.end() :]
    if not kind and _ASSERT.match(text):
        return "AssertionError", text
    return kind, text


def _shorten(text: str) -> str:
    """Return the text, or its beginning and a hash of the whole."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[:_MOST_CHARACTERS]}...{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"
