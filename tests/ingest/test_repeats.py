"""The same name twice: a retry only where nothing else can look like that."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_runner.protocol import Outcome
from service.ingest import read_report
from service.ingest.report import Repetition, ReportFile

DATA = Path(__file__).parent / "data"
PASS, FAIL, SKIP, SLOW_SKIP, RUN = (
    '<testcase classname="c" name="n" time="0.1"/>',
    '<testcase classname="c" name="n" time="0.1"><failure message="x"/></testcase>',
    '<testcase classname="c" name="n" time="0"><skipped/></testcase>',
    '<testcase classname="c" name="n" time="0.1"><skipped/></testcase>',
    '<testcase classname="c" name="n" time="0.1" status="run"/>',
)


def read(*cases: str, tests: int | None = None, suite: str = "s") -> ReportFile:
    count = len(cases) if tests is None else tests
    return read_report("r.xml", f'<testsuite name="{suite}" tests="{count}">{"".join(cases)}</testsuite>'.encode())


def shape(file: ReportFile) -> list[tuple[str, int, str]]:
    return [(case.identity.variant, case.attempt, case.outcome.value) for case in file.cases]


def kinds(file: ReportFile) -> set[Repetition]:
    return {case.repetition for case in file.cases}


def test_bare_cases_before_a_failure_are_failed_attempts() -> None:
    file = read_report("r.xml", (DATA / "bare_retries.xml").read_bytes())
    broken, flaky = file.cases[:3], file.cases[3:5]
    assert [(case.attempt, case.outcome, case.is_inferred) for case in broken] == [
        (1, Outcome.FAILED, True),
        (2, Outcome.FAILED, True),
        (3, Outcome.FAILED, False),
    ]
    assert [(case.attempt, case.outcome, case.is_inferred) for case in flaky] == [
        (1, Outcome.FAILED, True),
        (2, Outcome.PASSED, False),
    ]
    assert "5" not in file.problems[0].message
    assert file.is_complete


@pytest.mark.parametrize(
    ("cases", "tests", "expected"),
    [
        # A retry that says so.
        ([FAIL, PASS], 2, [("", 1, "failed"), ("", 2, "passed")]),
        ([FAIL, FAIL, FAIL], 3, [("", 1, "failed"), ("", 2, "failed"), ("", 3, "failed")]),
        # TestNG marks an attempt that it retried as skipped, though it took time.
        ([SLOW_SKIP, FAIL], 2, [("", 1, "failed"), ("", 2, "failed")]),
        ([SLOW_SKIP, PASS], 2, [("", 1, "failed"), ("", 2, "passed")]),
        # A skip that took no time is a skip.
        ([SKIP, PASS], 2, [("", 1, "skipped"), ("row 2", 1, "passed")]),
        # Fewer declared than held, all but the last bare, the last failed: attempts.
        ([PASS, PASS, FAIL], 1, [("", 1, "failed"), ("", 2, "failed"), ("", 3, "failed")]),
        # The same all bare: nobody can tell, and nothing is claimed.
        ([PASS, PASS], 1, [("", 1, "unknown"), ("", 2, "passed")]),
        # As many declared as held: two tests of one name, as googletest allows.
        ([PASS, FAIL], 2, [("", 1, "passed"), ("row 2", 1, "failed")]),
        ([PASS, PASS], 2, [("", 1, "passed"), ("row 2", 1, "passed")]),
        # doctest says `run` of each row and declares fewer tests than rows.
        ([RUN, RUN], 1, [("", 1, "passed"), ("row 2", 1, "passed")]),
        ([PASS, SKIP, PASS], 3, [("", 1, "passed"), ("row 2", 1, "skipped"), ("row 3", 1, "passed")]),
    ],
)
def test_same_name_in_one_suite(cases: list[str], tests: int, expected: list[tuple[str, int, str]]) -> None:
    assert shape(read(*cases, tests=tests)) == expected


def test_one_name_that_cannot_be_a_retry_speaks_for_its_whole_suite() -> None:
    rows = '<testcase classname="c" name="m"/><testcase classname="c" name="m"><skipped message="why"/></testcase>'
    file = read(FAIL, PASS, rows, tests=4)
    assert shape(file) == [("", 1, "failed"), ("row 2", 1, "passed"), ("", 1, "passed"), ("row 2", 1, "skipped")]


def test_pytest_never_repeats_an_id_but_for_a_retry() -> None:
    assert shape(read(PASS, PASS, suite="pytest")) == [("", 1, "failed"), ("", 2, "passed")]


def test_a_teardown_error_after_a_failure_belongs_to_the_same_attempt() -> None:
    error = '<testcase classname="c" name="n"><error message="failed on teardown with &quot;E: y&quot;">trace</error></testcase>'
    file = read(FAIL, error, suite="pytest")
    assert shape(file) == [("", 1, "failed")]
    assert file.cases[0].detail is not None
    assert "failed on teardown" in file.cases[0].detail


def test_results_of_one_source_line_are_one_test_run_again() -> None:
    lines = [case.replace('name="n"', 'name="n" file="a.py" line="15"') for case in (PASS, FAIL)]
    file = read(*lines)
    assert shape(file) == [("", 1, "passed"), ("", 2, "failed")]
    assert kinds(file) == {Repetition.SINGLE, Repetition.REPEAT}


def test_the_host_of_a_suite_is_a_variant_only_where_it_tells_results_apart() -> None:
    file = read_report("r.xml", (DATA / "browsers.xml").read_bytes())
    assert shape(file) == [("chromium", 1, "passed"), ("firefox", 1, "timed_out")]
    alone = f'<testsuite name="s" hostname="Mobile Chrome">{PASS}</testsuite>'
    assert shape(read_report("r.xml", alone.encode())) == [("Mobile Chrome", 1, "passed")]
    hosts = [f'<testsuite name="s" hostname="{host}">{PASS}</testsuite>' for host in ("box-1", "box-2")]
    assert shape(read_report("r.xml", f"<testsuites>{''.join(hosts)}</testsuites>".encode())) == [
        ("box-1", 1, "passed"),
        ("box-2", 1, "passed"),
    ]
    assert shape(read_report("r.xml", f"<testsuites>{hosts[0]}</testsuites>".encode())) == [("", 1, "passed")]


def test_stress_runs_of_nextest_are_repeats() -> None:
    suites = [f'<testsuite name="a::b@stress-{i}">{case}</testsuite>' for i, case in enumerate((PASS, FAIL, PASS))]
    file = read_report("r.xml", f"<testsuites>{''.join(suites)}</testsuites>".encode())
    assert shape(file) == [("", 1, "passed"), ("", 2, "failed"), ("", 3, "passed")]
    assert file.cases[2].repetition is Repetition.REPEAT


def test_equal_names_of_different_suites_are_different_tests() -> None:
    suites = [f'<testsuite name="t/{i}.t"><testcase name="1 - add"/></testsuite>' for i in range(2)]
    file = read_report("r.xml", f"<testsuites>{''.join(suites)}</testsuites>".encode())
    assert [case.identity.display for case in file.cases] == ["t/0.t > 1 - add", "t/1.t > 1 - add"]


def test_nameless_failures_are_never_attempts_of_each_other() -> None:
    nameless = '<testcase classname=""><failure message="x"/></testcase>'
    assert [variant for variant, _, _ in shape(read(nameless, nameless))] == ["", "row 2"]
