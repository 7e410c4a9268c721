"""What the JUnit reader makes of good and bad files; each case names the real quirk behind it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from gpu_runner.protocol import Measurement, Outcome
from service.ingest import read_report
from service.ingest.document import MAX_BYTES, MAX_PROBLEMS
from service.ingest.report import FileStatus, Repetition, ReportFile
from service.ingest.xml_stream import MAX_DEPTH

DATA = Path(__file__).parent / "data"


def read(name: str) -> ReportFile:
    return read_report(name, (DATA / name).read_bytes())


def read_cases(cases: str, *, tests: int | None = None, suite: str = "s") -> ReportFile:
    declared = "" if tests is None else f' tests="{tests}"'
    return read_report("r.xml", f'<testsuite name="{suite}"{declared}>{cases}</testsuite>'.encode())


def outcomes(file: ReportFile) -> list[Outcome]:
    return [case.outcome for case in file.cases]


def test_a_pytest_report_is_read_whole() -> None:
    file = read("pytest.xml")
    assert (file.status, file.is_complete, file.problems) == (FileStatus.PARSED, True, ())
    assert outcomes(file) == [Outcome.PASSED, Outcome.FAILED, Outcome.EXPECTED_FAILURE, Outcome.ERROR]
    assert [case.position for case in file.cases] == [0, 1, 2, 3]
    small, large, _, setup = file.cases
    assert small.identity.display == "tests.test_math.TestAdd::test_small[1-2]"
    assert small.counters == {"gdn.fired": 3}
    assert small.measurements == (Measurement("kl_div", 0.25),)
    assert small.duration_s == 0.001
    assert large.failure_type == "AssertionError"
    assert large.message == "assert 3 == 4"
    assert large.detail is not None
    assert "tests/test_math.py:7" in large.detail
    assert setup.signature == "error|RuntimeError|no device #"
    assert file.started is not None
    assert file.started.is_zone_known
    assert file.started.at is not None
    assert file.started.at.isoformat() == "2026-03-01T09:00:00+00:00"


def test_ctests_words_for_not_running_are_told_apart() -> None:
    file = read("ctest.xml")
    assert outcomes(file) == [Outcome.PASSED, Outcome.FAILED, Outcome.NOT_RUN, Outcome.SKIPPED, Outcome.SKIPPED]
    works = file.cases[0]
    assert works.identity.display == "works"
    assert works.counters == {"launches": 2}
    assert works.measurements == (Measurement("kl_div", 0.5, sample=1),)


def test_reruns_inside_a_case_are_attempts_in_the_order_in_which_they_ran() -> None:
    file = read("surefire_reruns.xml")
    assert [(case.identity.name, case.attempt, case.outcome, case.message) for case in file.cases] == [
        ("settles", 1, Outcome.FAILED, "first"),
        ("settles", 2, Outcome.ERROR, "second"),
        ("settles", 3, Outcome.PASSED, None),
        ("never", 1, Outcome.FAILED, "a"),
        ("never", 2, Outcome.FAILED, "b"),
    ]
    assert {case.repetition for case in file.cases} == {Repetition.RETRY}
    assert file.cases[0].output == "one"
    assert file.cases[0].detail == "at A"


def test_a_file_that_breaks_off_keeps_what_it_holds_and_is_not_complete() -> None:
    file = read("cut_off.xml")
    assert file.status is FileStatus.REPAIRED
    assert file.is_cut
    assert not file.is_complete
    assert [(case.identity.name, case.outcome) for case in file.cases] == [
        ("whole", Outcome.PASSED),
        ("broken", Outcome.FAILED),
    ]
    assert file.problems[-1].place == "4:1"


@pytest.mark.parametrize("at", range(1, len((DATA / "pytest.xml").read_bytes()) - 1, 7))
def test_a_file_cut_anywhere_is_never_taken_as_whole(at: int) -> None:
    data = (DATA / "pytest.xml").read_bytes().rstrip()
    file = read_report("cut.xml", data[:at])
    assert file.status is not FileStatus.PARSED
    assert not file.is_complete
    assert file.problems[0].line is not None


def test_forbidden_bytes_stray_brackets_and_references_are_repaired_and_named() -> None:
    file = read("dirty.xml")
    assert file.status is FileStatus.REPAIRED
    assert file.is_complete
    assert [case.identity.name for case in file.cases] == ["esc", "given a -> b <T>", "caf\ufffd"]
    assert file.cases[0].signature == "failed||red"
    assert file.cases[1].file == "a < b & c"
    assert [problem.place for problem in file.problems] == ["2:65", "2:78", "3:44", "4:34"]


def test_text_around_the_report_is_ignored_with_a_word() -> None:
    file = read("surrounded.xml")
    assert file.status is FileStatus.REPAIRED
    assert [str(problem) for problem in file.problems] == [
        "1:1: text before the report is ignored",
        "4:1: text after the report is ignored",
    ]
    assert len(file.cases) == 1


@pytest.mark.parametrize("comment", [b"short", b"x" * 8000, b"<!-" * 3000])
def test_a_document_type_is_refused_wherever_it_stands(comment: bytes) -> None:
    file = read_report("e.xml", (DATA / "entity.xml").read_bytes().replace(b"%s", comment))
    assert file.status is FileStatus.REJECTED
    assert "DOCTYPE" in file.problems[0].message
    assert file.problems[0].line == 2


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
@pytest.mark.parametrize("name", ["pytest.xml", "entity.xml"])
def test_encodings_hide_nothing(encoding: str, name: str) -> None:
    plain = (DATA / name).read_text()
    file = read_report(name, plain.encode(encoding))
    assert file.cases == read(name).cases
    assert file.status is read(name).status


def test_a_declared_code_page_is_used() -> None:
    text = '<?xml version="1.1" encoding="ISO-8859-1"?><testsuite name="s"><testcase classname="c" name="café"/></testsuite>'
    file = read_report("latin.xml", text.encode("latin-1"))
    assert file.cases[0].identity.name == "café"
    assert file.status is FileStatus.PARSED


@pytest.mark.parametrize("encoding", ["punycode", "zip", "no-such-thing"])
def test_an_encoding_that_is_none_is_read_as_utf8_with_a_word(encoding: str) -> None:
    text = (
        f'<?xml version="1.0" encoding="{encoding}"?><testsuite name="s"><testcase classname="c" name="é"/></testsuite>'
    )
    file = read_report("x.xml", text.encode())
    assert file.cases[0].identity.name == "é"
    assert file.status is FileStatus.REPAIRED


def test_gzip_is_unpacked_member_by_member_and_broken_gzip_is_kept_as_far_as_it_goes() -> None:
    data = (DATA / "pytest.xml").read_bytes()
    assert read_report("p.xml.gz", gzip.compress(data)).cases == read("pytest.xml").cases
    halves = gzip.compress(data[:300]) + gzip.compress(data[300:])
    assert read_report("p.xml.gz", halves).cases == read("pytest.xml").cases
    broken = read_report("p.xml.gz", gzip.compress(data * 50)[:-40])
    assert not broken.is_complete
    assert broken.status is FileStatus.REPAIRED
    assert read_report("p.xml.gz", b"\x1f\x8bnothing").status is FileStatus.REJECTED


def test_a_zip_bomb_ends_at_the_limit() -> None:
    bomb = gzip.compress(bytes(MAX_BYTES + 2), compresslevel=1)
    file = read_report("bomb.gz", bomb)
    assert file.status is FileStatus.REJECTED
    assert str(MAX_BYTES) in file.problems[0].message


def test_many_built_in_entities_are_fine_and_deep_nesting_is_not() -> None:
    assert read_cases(f'<testcase classname="c" name="{"&amp;" * 20000}"/>').status is FileStatus.PARSED
    deep = read_report("deep.xml", b"<testsuite>" * (MAX_DEPTH + 1) + b"</testsuite>" * (MAX_DEPTH + 1))
    assert deep.status is FileStatus.REJECTED
    assert "deeper" in deep.problems[0].message


@pytest.mark.parametrize(
    "data", [b"", b"  \n", b'<?xml version="1.0"?>\n', b"hello", b"<a/>", b"<robot/>", b"\0\0", b"<", b"{}"]
)
def test_what_is_no_report_is_rejected_with_its_place(data: bytes) -> None:
    file = read_report("x", data)
    assert file.status is FileStatus.REJECTED
    assert not file.is_complete
    assert file.problems[0].place == "1:1"


def test_a_foreign_root_is_named_and_its_cases_are_kept() -> None:
    file = read_report(
        "x.xml", b'<testrun><testsuite name="s"><testcase classname="c" name="n"/></testsuite></testrun>'
    )
    assert file.status is FileStatus.REPAIRED
    assert len(file.cases) == 1
    assert "<testrun>" in file.problems[0].message


def test_two_reports_in_one_file_are_both_read() -> None:
    one = (DATA / "pytest.xml").read_bytes()
    file = read_report(
        "two.xml", one + b'<?xml version="1.0"?>\n<testsuite><testcase classname="x" name="y"/></testsuite>'
    )
    assert len(file.cases) == len(read("pytest.xml").cases) + 1
    assert file.status is FileStatus.REPAIRED


def test_more_declared_than_held_is_incomplete_and_the_other_way_round_is_not() -> None:
    short = read_cases('<testcase classname="c" name="n"/>', tests=3)
    assert short.status is FileStatus.PARSED
    assert not short.is_complete
    assert "declares 3 tests and holds 1" in short.problems[0].message
    assert read_cases('<testcase classname="c" name="n"/>', tests=0).is_complete


def test_a_case_inside_a_case_hides_no_failure() -> None:
    file = read_cases('<testcase name="outer"><testcase name="inner"/><failure message="x"/></testcase>')
    assert [(case.identity.name, case.outcome) for case in file.cases] == [
        ("inner", Outcome.PASSED),
        ("outer", Outcome.FAILED),
    ]


def test_a_suite_that_failed_outside_its_tests_is_a_failing_case() -> None:
    file = read_cases('<testcase classname="c" name="n"/><error message="Dubious, test returned 2"/>')
    assert outcomes(file) == [Outcome.PASSED, Outcome.ERROR]


def test_a_nameless_case_is_dropped_only_when_it_says_nothing() -> None:
    file = read_cases('<testcase time="0.1"/><testcase time="0.1"><failure message="x"/></testcase>')
    assert [(case.identity.display, case.outcome) for case in file.cases] == [("s > (?)", Outcome.FAILED)]
    assert "dropped" in file.problems[0].message


@pytest.mark.parametrize(
    ("inside", "attributes", "outcome"),
    [
        ('<failure message="x"/><skipped/>', "", Outcome.FAILED),
        ("<error/><failure/>", "", Outcome.FAILED),
        ("<skipped/>", "", Outcome.SKIPPED),
        ('<skipped type="pytest.xfail"/>', "", Outcome.EXPECTED_FAILURE),
        ('<skipped message="Fixture dependency failed"/>', "", Outcome.NOT_RUN),
        ("<failure/>", 'status="disabled"', Outcome.EXPECTED_FAILURE),
        ("<failure/>", 'result="suppressed"', Outcome.EXPECTED_FAILURE),
        ("", 'status="disabled"', Outcome.SKIPPED),
        ("", 'status="notrun" result="suppressed"', Outcome.SKIPPED),
        ("", 'status="run" result="completed"', Outcome.PASSED),
        ("", 'status="FAIL"', Outcome.FAILED),
        ("", 'status="unfinished"', Outcome.ERROR),
        ('<failure type="test timeout"/>', "", Outcome.TIMED_OUT),
        ('<error type="org.junit.runners.model.TestTimedOutException" message="test timed out after 10 ms"/>', "", Outcome.TIMED_OUT),
        ('<failure message="Failed: Timeout (&gt;1.0s) from pytest-timeout."/>', "", Outcome.TIMED_OUT),
        ('<failure type="java.util.concurrent.TimeoutException" message="no answer"/>', "", Outcome.FAILED),
        ('<failure type="SIGSEGV"/>', "", Outcome.CRASHED),
        ("<error message=\"failed on setup with &quot;worker 'gw0' crashed while running 'a.py::b'&quot;\"/>", "", Outcome.CRASHED),
    ],
)  # fmt: skip
def test_outcome_of(inside: str, attributes: str, outcome: Outcome) -> None:
    file = read_cases(f'<testcase classname="c" name="n" {attributes}>{inside}</testcase>')
    assert outcomes(file) == [outcome]


def test_a_message_that_only_holds_values_gives_way_to_the_text_that_names_the_expression() -> None:
    file = read_cases(
        '<testcase classname="c" name="n"><failure message="1 == 2" type="CHECK">a.cpp(3):\n'
        "CHECK( i + j == 2 ) is NOT correct!\n  values: CHECK( 1 == 2 )</failure></testcase>"
    )
    assert (
        file.cases[0].signature == "failed|CHECK|a.cpp(#): CHECK( i + j == # ) is NOT correct! values: CHECK( # == # )"
    )


def test_durations_in_the_files_own_locale() -> None:
    decimal = read_cases('<testcase name="a" classname="c" time="0,160"/><testcase name="b" classname="c" time="1,5"/>')
    assert [case.duration_s for case in decimal.cases] == [0.16, 1.5]
    alone = read_cases('<testcase name="a" classname="c" time="0,160"/><testcase name="b" classname="c" time="-3"/>')
    assert [case.duration_s for case in alone.cases] == [None, 0.0]
    assert "1 duration could not be read" in alone.problems[0].message


def test_long_names_stay_apart_and_long_output_keeps_its_end() -> None:
    stem = "n" * 5000
    file = read_cases(
        f'<testcase classname="c" name="{stem}1"/><testcase classname="c" name="{stem}2"/>'
        f'<testcase classname="c" name="o"><system-out>{"x" * 100_000}the reason</system-out></testcase>'
    )
    one, two, loud = file.cases
    assert len(one.identity.name) < 2100
    assert one.identity != two.identity
    assert loud.output is not None
    assert loud.output.endswith("the reason")
    assert len(loud.output) < 70_000


def test_bad_numbers_stay_unknown_and_do_not_flood_the_remarks() -> None:
    lines = "".join(f"LIKEWISE_COUNTER c{i}=many\n" for i in range(MAX_PROBLEMS + 50))
    file = read_cases(
        f'<testcase classname="c" name="n"><system-out>{lines}LIKEWISE_METRIC kl=nan\nLIKEWISE_COUNTER ok=4</system-out></testcase>'
    )
    assert file.cases[0].counters == {"ok": 4}
    assert file.cases[0].measurements == ()
    assert len(file.problems) == MAX_PROBLEMS + 1
    assert file.problems[-1].message == "and 51 more"


def test_a_measurement_given_several_times_is_numbered() -> None:
    properties = "".join(f'<property name="likewise.metric.kl" value="{value}"/>' for value in (0.5, 0.25, 0.125))
    file = read_cases(f'<testcase classname="c" name="n"><properties>{properties}</properties></testcase>')
    assert [(m.sample, m.value) for m in file.cases[0].measurements] == [(0, 0.5), (1, 0.25), (2, 0.125)]


def test_numbers_of_a_suite_belong_to_the_execution() -> None:
    file = read_cases(
        '<properties><property name="likewise.counter.builds" value="1"/><property name="os" value="x"/></properties>'
        '<testcase classname="c" name="n"/><system-out>LIKEWISE_METRIC load=0.5</system-out>'
    )
    assert file.counters == {"builds": 1}
    assert file.measurements == (Measurement("load", 0.5),)
    assert file.cases[0].counters == {}
