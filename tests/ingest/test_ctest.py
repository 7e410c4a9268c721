"""What ctest writes of its own, alone and joined."""

from __future__ import annotations

from pathlib import Path

from gpu_runner.protocol import Outcome
from service.ingest import read_report
from service.ingest.payload import RunPayload, UploadedFile, metadata_of
from service.ingest.report import FileStatus, Repetition
from service.ingest.upload import RunReport, read_run

DATA = Path(__file__).parent / "data"


def run_of(*names: str) -> RunReport:
    files = tuple(UploadedFile(name=name, content=(DATA / name).read_bytes()) for name in names)
    return read_run(RunPayload(metadata=metadata_of(project="o/n", sha="a" * 40, run_id="1"), files=files))


def found(run: RunReport) -> dict[str, list[str]]:
    by_name: dict[str, list[str]] = {}
    for case in run.cases:
        by_name.setdefault(case.identity.name, []).append(case.outcome.value)
    return by_name


def test_the_console_tells_reasons_and_attempts() -> None:
    run = run_of("console.txt")
    assert found(run) == {
        "works": ["passed"],
        "slow": ["timed_out"],
        "segv": ["crashed"],
        "aborts": ["crashed"],
        "absent": ["not_run"],
        "flaky": ["failed", "passed"],
    }
    signatures = {case.identity.name: case.signature for case in run.cases if case.outcome is Outcome.CRASHED}
    assert signatures == {"segv": "crashed|SIGSEGV|", "aborts": "crashed|SIGABRT|"}
    assert [case.attempt for case in run.cases if case.repetition is Repetition.RETRY] == [1, 2]


def test_test_xml_tells_crash_skip_and_absence() -> None:
    run = run_of("Test.xml")
    assert found(run) == {"works": ["passed"], "segv": ["crashed"], "asks": ["skipped"], "absent": ["not_run"]}
    assert run.cases[0].counters == {"launches": 2}
    assert run.files[0].started is not None


def test_the_log_is_read_and_does_not_call_a_test_passed_that_never_started() -> None:
    run = run_of("LastTest.log")
    assert found(run) == {"works": ["passed"], "asks": ["skipped"], "absent": ["not_run"]}
    assert "tells no skip" in run.files[0].problems[0].message


def test_reports_of_one_ctest_run_are_joined_test_by_test() -> None:
    run = run_of("ctest.xml", "console.txt", "LastTest.log", "Test.xml")
    outcomes = found(run)
    assert outcomes["slow"] == ["timed_out"]
    assert outcomes["segv"] == ["crashed"]
    assert outcomes["flaky"] == ["failed", "passed"]
    assert outcomes["works"] == ["passed"]
    works = next(case for case in run.cases if case.identity.name == "works")
    assert works.counters == {"launches": 2}
    assert works.output is not None
    assert any("joined" in problem.message for problem in run.problems)


def test_a_log_or_a_site_that_breaks_off_is_incomplete() -> None:
    for name, cut in (
        ("LastTest.log", b"<end of output>"),
        ("console.txt", b"\n      Test #6"),
        ("Test.xml", b'<Test Status="notrun">'),
    ):
        data = (DATA / name).read_bytes()
        file = read_report(name, data[: data.rindex(cut)])
        assert file.cases, name
        assert not file.is_complete, name
        assert file.status is FileStatus.REPAIRED, name
    log = (DATA / "LastTest.log").read_bytes()
    assert read_report("x", log[:60]).status is FileStatus.REJECTED


def test_a_listed_test_without_a_result_is_missing() -> None:
    data = (DATA / "Test.xml").read_bytes().replace(b"<Test>./works</Test>", b"<Test>./works</Test><Test>./more</Test>")
    file = read_report("Test.xml", data)
    assert not file.is_complete
    assert "5 tests are listed and 4" in file.problems[0].message


def test_a_site_of_another_kind_is_rejected() -> None:
    file = read_report("Build.xml", b"<Site><Build/></Site>")
    assert file.status is FileStatus.REJECTED
    assert read_report("x", b"<!DOCTYPE Site><Site><Testing/></Site>").status is FileStatus.REJECTED
