"""Files of one upload become one run: nothing twice, nothing overwritten, no loss that reads as green."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_runner.protocol import Measurement, Outcome
from service.domain import RunStatus
from service.ingest.payload import Conclusion, RunPayload, UploadedFile, metadata_of
from service.ingest.report import FileStatus, Repetition
from service.ingest.summary import summarise
from service.ingest.upload import RunReport, read_run

PASS = '<testcase classname="c" name="n" time="0.5"/>'
FAIL = '<testcase classname="c" name="n" time="0.25"><failure message="x"/></testcase>'
OTHER = '<testcase classname="c" name="other" time="0.125"/>'


def suite(*cases: str, name: str = "s", tests: int | None = None) -> bytes:
    return f'<testsuite name="{name}" tests="{len(cases) if tests is None else tests}">{"".join(cases)}</testsuite>'.encode()


def run_of(*contents: bytes, **metadata: Any) -> RunReport:
    files = tuple(UploadedFile(name=f"{i}.xml", content=content) for i, content in enumerate(contents))
    given = {"project": "o/n", "sha": "a" * 40, "run_id": "1"} | metadata
    return read_run(RunPayload(metadata=metadata_of(**given), files=files))


def test_one_bad_file_never_drops_the_others_and_makes_the_run_partial() -> None:
    run = run_of(b"rubbish", suite(PASS), b"", suite(OTHER))
    assert [file.status for file in run.files] == [
        FileStatus.REJECTED,
        FileStatus.PARSED,
        FileStatus.REJECTED,
        FileStatus.PARSED,
    ]
    assert len(run.cases) == 2
    assert run.status is RunStatus.PARTIAL


@pytest.mark.parametrize(
    ("contents", "metadata", "status"),
    [
        ([suite(PASS)], {}, RunStatus.COMPLETE),
        ([suite(PASS)], {"exit_code": 0}, RunStatus.COMPLETE),
        ([suite(FAIL)], {"exit_code": 1}, RunStatus.COMPLETE),
        ([suite(PASS)], {"exit_code": 1}, RunStatus.PARTIAL),
        ([suite(PASS)], {"conclusion": Conclusion.FAILURE}, RunStatus.PARTIAL),
        ([suite(FAIL)], {"conclusion": Conclusion.CANCELLED}, RunStatus.PARTIAL),
        ([suite(PASS, tests=2)], {}, RunStatus.PARTIAL),
        ([suite(PASS)[:-5]], {}, RunStatus.PARTIAL),
        ([], {}, RunStatus.LOST),
        ([], {"exit_code": 0}, RunStatus.LOST),
        ([b"rubbish"], {"exit_code": 0}, RunStatus.LOST),
        ([suite()], {"exit_code": 143}, RunStatus.LOST),
        ([suite()], {}, RunStatus.COMPLETE),
        ([suite(tests=9)], {}, RunStatus.LOST),
    ],
)
def test_how_much_of_a_run_is_known(contents: list[bytes], metadata: dict[str, Any], status: RunStatus) -> None:
    run = run_of(*contents, **metadata)
    assert run.status is status
    if status is RunStatus.LOST:
        assert not run.cases
        assert "lost" in run.problems[-1].message


def test_the_same_file_and_the_same_suite_twice_count_once() -> None:
    assert len(run_of(suite(PASS), suite(PASS)).cases) == 1
    run = run_of(suite(PASS), suite(PASS, OTHER))
    assert [(case.identity.name, case.attempt) for case in run.cases] == [("n", 1), ("other", 1)]
    assert "counted once" in run.problems[0].message


def test_the_same_test_in_two_files_is_run_again_and_never_overwritten() -> None:
    run = run_of(suite(PASS), suite(FAIL), suite(FAIL.replace("0.25", "0.75")))
    assert [(case.attempt, case.outcome, case.position) for case in run.cases] == [
        (1, Outcome.PASSED, 0),
        (2, Outcome.FAILED, 1),
        (3, Outcome.FAILED, 2),
    ]
    assert run.cases[2].repetition is Repetition.REPEAT
    assert "--variant" in run.problems[0].message


def test_attempts_of_a_second_file_follow_those_of_the_first() -> None:
    run = run_of(suite(FAIL, PASS), suite(FAIL.replace("0.25", "0.75"), PASS.replace("0.5", "0.875")))
    assert [case.attempt for case in run.cases] == [1, 2, 3, 4]


def test_numbers_of_the_files_are_those_of_the_execution() -> None:
    properties = '<properties><property name="likewise.counter.c" value="2"/><property name="likewise.metric.m" value="0.5"/></properties>'
    run = run_of(suite(properties, PASS, tests=1), suite(properties, OTHER, tests=1))
    assert run.counters == {"c": 4}
    assert run.measurements == (Measurement("m", 0.5), Measurement("m", 0.5))


def test_the_summary_lists_the_worst_file_first() -> None:
    run = run_of(
        suite(PASS), suite(OTHER, FAIL.replace('"n"', '"m"')), b"rubbish", suite(PASS.replace('"n"', '"k"'))[:-5]
    )
    summary = summarise(run, run="12", url="http://x/12")
    assert [file.name for file in summary.files] == ["2.xml", "3.xml", "1.xml", "0.xml"]
    assert summary.outcomes == {"failed": 1, "passed": 3}
    assert (summary.run, summary.url, summary.is_whole) == ("12", "http://x/12", False)
    assert summary.files[0].problems == ("1:1: not well-formed: syntax error",)
    assert summarise(run_of(suite(FAIL))).is_whole
