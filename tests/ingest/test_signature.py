"""Equal signatures for two runs of one assertion, different ones for two assertions."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_runner.protocol import Outcome
from service.signature import failure_signature

FAILED = Outcome.FAILED
steady = settings(deadline=None, derandomize=True, max_examples=100)


def signature(message: str | None, failure_type: str | None = None, outcome: Outcome = FAILED) -> str:
    return failure_signature(outcome, failure_type, message)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("assert 0.31 < 0.1", "assert 1e-07 < -12"),
        ("assert nan < 0.1", "assert inf < 0.1"),
        ("KL 0.25 above 0.1 at token 17", "KL 3.5e+01 above 0.1 at token 4,096"),
        ("assert [1, 2, 3] == [1, 2]", "assert [7] == [0, 0, 0, 0]"),
        ("assert 3 == 4\n +  where 3 = f()\n  extra line", "assert 5 == 4\n +  where 5 = f()"),
        ("too slow: 80.8us", "too slow: 1.2 s"),
        ("allocate 2.00 GiB, 12 MiB free", "allocate 512 MiB, 3.1 GiB free"),
        ("<Foo object at 0x7f53d0c525d0> is broken", "<Foo object at 0x55aa> is broken"),
        ("cannot open /tmp/pytest-of-ci/pytest-3/x/out.bin", "cannot open /var/tmp/u/out.bin"),
        ("cannot open C:\\build\\1\\out.bin", "cannot open D:\\w\\out.bin"),
        ("see tests/unit/test_a.py:12: bad", "see /home/ci/repo/tests/unit/test_a.py:340: bad"),
        ("job 123e4567-e89b-12d3-a456-426614174000 died", "job 00000000-e89b-12d3-a456-426614174fff died"),
        ("at 2026-01-02T03:04:05.678Z lost", "at 2025-12-31 23:59:59 lost"),
        ("commit deadbeef1 differs", "commit 0123abc9 differs"),
        ("worker 'gw0' crashed while running 'a.py::b'", "worker 'gw11' crashed while running 'a.py::b'"),
        ("\x1b[31mred\x1b[0m", "\ufffd[32mred\ufffd[m"),
        ("GET http://127.0.0.1:5001/a failed", "GET http://127.0.0.1:39999/b failed"),
        ("--- FAIL: TestX (3.3s)\n    x_test.go:23: no", "=== RUN TestX\n    x_test.go:27: no\n--- FAIL: TestX (0.1s)"),
        ("first line\n\ttail\n\n  at a.b(C.java:1)", "first line\n\ttail\n\n  at z.z(Q.java:99)"),
        (f"expected '{'a' * 80}'", f"expected '{'b' * 90}'"),
        ("tensor([[1., 2.], [3., 4.]], device='cuda:0')", "tensor([[5., 6.]], device='cuda:3')"),
        ("AssertionError: assert 1 == 2", "assert 3 == 4"),
        ('failed on setup with "RuntimeError: no device 0"', "RuntimeError: no device 7"),
    ],
)
def test_the_same_assertion_with_other_values(one: str, other: str) -> None:
    assert signature(one) == signature(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("assert a.x == 1", "assert a.y == 1"),
        ("assert 1 < 2", "assert 1 > 2"),
        ("assert 1 == 2\n +  where 1 = f()", "assert 1 == 2\n +  where 1 = g()"),
        ("ValueError: bad", "TypeError: bad"),
        ("KeyError: 'user_ip'", "KeyError: 'user_id'"),
        ("expected int32", "expected int64"),
        ("conv2d failed", "conv3d failed"),
        ("a.cc:5\nExpected equality of these values:\n  f(1)", "a.cc:5\nExpected equality of these values:\n  g(1)"),
        ("a.cc:5: no", "b.cc:5: no"),
        ("device='cuda:0'", "device='cpu'"),
        ("x" * 4000, "x" * 399 + "y" * 3000),
        ("one\ntwo", "one\nthree"),
    ],
)
def test_different_assertions(one: str, other: str) -> None:
    assert signature(one) != signature(other)


def test_the_type_may_stand_in_its_field_or_in_the_message() -> None:
    expected = "failed|ValueError|bad shape"
    assert signature("ValueError: bad shape") == expected
    assert signature("bad shape", "ValueError") == expected
    assert signature("ValueError: bad shape", "builtins.ValueError") == expected
    assert signature("assert 1 == 2", "AssertionError") == signature("assert 1 == 2")
    assert signature("Exception: x") == "failed|Exception|x"
    assert signature("boom", "test failure") == "failed||boom"
    assert signature("x", "PHPUnit\\Framework\\Failed") == "failed|Failed|x"


@pytest.mark.parametrize(
    "outcome", [Outcome.PASSED, Outcome.SKIPPED, Outcome.NOT_RUN, Outcome.EXPECTED_FAILURE, Outcome.UNKNOWN]
)
def test_what_did_not_fail_has_no_signature(outcome: Outcome) -> None:
    assert signature("assert 1", "AssertionError", outcome) == ""


def test_outcomes_that_fail_differ() -> None:
    failing = [Outcome.FAILED, Outcome.ERROR, Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.KILLED]
    assert len({signature("boom", None, outcome) for outcome in failing}) == len(failing)


@pytest.mark.parametrize(
    ("message", "signal"),
    [("SEGFAULT", "SIGSEGV"), ("Segmentation fault (core dumped)", "SIGSEGV"), ("exit code -11", "SIGSEGV"), ("Subprocess aborted", "SIGABRT"),
     ("signal: 6", "SIGABRT"), ("exit status 137", "SIGKILL"), ("Bus error", "SIGBUS"), ("Exception: Illegal", "SIGILL")],
)  # fmt: skip
def test_a_crash_is_its_signal(message: str, signal: str) -> None:
    assert signature(message, None, Outcome.CRASHED) == f"crashed|{signal}|"


def test_what_a_time_out_or_the_guard_interrupted_does_not_matter() -> None:
    assert signature("in f()", "X", Outcome.TIMED_OUT) == signature(None, None, Outcome.TIMED_OUT) == "timed_out||"
    assert signature("in f()", "X", Outcome.KILLED) == "killed||"


NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=True, allow_infinity=True)).map(str)
WORDS = st.text("abcdefghij_", min_size=1, max_size=12)
OPERATORS = st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "is not", "in"])


@given(left=NUMBERS, right=NUMBERS, other_left=NUMBERS, other_right=NUMBERS, operator=OPERATORS)
@steady
def test_numbers_never_matter(left: str, right: str, other_left: str, other_right: str, operator: str) -> None:
    one, other = (f"assert {a} {operator} {b}" for a, b in ((left, right), (other_left, other_right)))
    assert signature(one) == signature(other)


@given(values=st.lists(NUMBERS, min_size=1, max_size=9), others=st.lists(NUMBERS, min_size=1, max_size=9), name=WORDS)
@steady
def test_lists_of_numbers_never_matter(values: list[str], others: list[str], name: str) -> None:
    one, other = (f"{name} is [{', '.join(given)}] here" for given in (values, others))
    assert signature(one) == signature(other)


@given(one=st.tuples(WORDS, OPERATORS, WORDS), other=st.tuples(WORDS, OPERATORS, WORDS))
@steady
def test_names_and_operators_always_matter(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    signatures = {
        signature(f"assert value_of({left}_x) {operator} {right}_y") for left, operator, right in (one, other)
    }
    assert (len(signatures) == 1) == (one == other)


@given(message=st.text(max_size=300), kind=st.one_of(st.none(), st.text(max_size=40)), outcome=st.sampled_from(Outcome))
@steady
def test_any_text_has_one_short_line(message: str, kind: str | None, outcome: Outcome) -> None:
    found = failure_signature(outcome, kind, message)
    assert found == failure_signature(outcome, kind, message)
    assert "\n" not in found
    assert len(found) < 600


@pytest.mark.parametrize(
    "text",
    [
        "." * 20_000,
        "-1" * 10_000,
        "'\\" * 10_000,
        "/" * 20_000,
        "a/" * 10_000,
        "1," * 10_000,
        "[1]," * 5_000,
        "a" * 20_000,
    ],
)
def test_no_text_takes_long(text: str) -> None:
    started = time.process_time()
    signature(text)
    assert time.process_time() - started < 1
