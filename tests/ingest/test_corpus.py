"""Real reports that nobody here wrote: every file is classified, none crashes, and each quirk has its file."""

from __future__ import annotations

import csv
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from gpu_runner.protocol import Outcome
from service.ingest import read_report
from service.ingest.payload import RunPayload, UploadedFile, metadata_of
from service.ingest.report import FileStatus, Repetition, ReportFile
from service.ingest.upload import RunReport, read_run

CORPUS = Path(__file__).parents[3] / "shared" / "real" / "junit"
PARSED, REPAIRED, REJECTED = FileStatus.PARSED, FileStatus.REPAIRED, FileStatus.REJECTED

if not (CORPUS / "CORPUS.tsv").is_file():
    pytest.skip(f"the corpus of real reports is not at {CORPUS}", allow_module_level=True)


class Row(NamedTuple):
    file: str
    parse: str
    root: str
    cases: int
    fail: int
    error: int
    skip: int
    reruns: int
    hostile: str


def _rows() -> list[Row]:
    with (CORPUS / "CORPUS.tsv").open(encoding="utf-8") as file:
        return [
            Row(
                row["file"], row["parse"], row["root"], int(row["cases"]), int(row["fail"]), int(row["error"]),
                int(row["skip"]), int(row["rerun_elems"]), row["hostile"],
            )
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        ]  # fmt: skip


ROWS = _rows()
BY_NAME = {row.file: row for row in ROWS}
# Files whose outcomes differ from a naive count, because one naive reading of them is wrong.
HIDDEN_FAILURES = {
    "dorny/external/java/TEST-org.apache.pulsar.AddMissingPatchVersionTest.xml",
    "dorny/external/java/pulsar-test-report.xml",
    "generated/pytest-rerunfailures-16.6.1.xml",
    "generated/pytest-rerunfailures-16.6.xml",
    "generated/pytest-rerunfailures-16.7.xml",
}
TOLERATED_FAILURES = {"mikepenz/issues/testFailedDisabled.xml"}
NAMELESS_DROPPED = {"enricomi/junit-xml/no-attributes.xml"}
SUITE_FAILURES = {"launchable/prove/report.xml", "jenkins-junit/junit-report-nested-testsuites.xml"}


@cache
def read(name: str) -> ReportFile:
    return read_report(name, (CORPUS / name).read_bytes())


def run_of(*names: str, **metadata: object) -> RunReport:
    given = {"project": "o/n", "sha": "a" * 40, "run_id": "1"} | metadata
    files = tuple(UploadedFile(name=name, content=(CORPUS / name).read_bytes()) for name in names)
    return read_run(RunPayload(metadata=metadata_of(**given), files=files))  # type: ignore[arg-type]


def only(name: str, key: str) -> list[tuple[int, str]]:
    """Attempts and outcomes of the test whose name is `key`."""
    return [(case.attempt, case.outcome.value) for case in read(name).cases if case.identity.name == key]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.file)
def test_every_file_is_classified_with_unique_attempts(row: Row) -> None:
    file = read(row.file)
    assert file.digest
    if file.status is REJECTED:
        assert not file.cases
        assert file.problems[0].line is not None
    if file.status is REPAIRED:
        assert file.problems
    keys = Counter((case.identity, case.attempt) for case in file.cases)
    assert not [key for key, count in keys.items() if count > 1]
    assert [case.position for case in file.cases] == list(range(len(file.cases)))
    for case in file.cases:
        assert case.duration_s is None or 0 <= case.duration_s < float("inf")
        assert case.identity.stable.display
        assert len(case.signature) < 600


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row.parse == "ok" and row.root in {"testsuites", "testsuite"} and not row.reruns],
    ids=lambda row: row.file,
)
def test_plain_files_count_as_in_the_table(row: Row) -> None:
    file = read(row.file)
    assert file.status in {PARSED, REPAIRED}
    if row.file not in NAMELESS_DROPPED | SUITE_FAILURES:
        assert len(file.cases) == row.cases
    if row.file not in HIDDEN_FAILURES | TOLERATED_FAILURES | SUITE_FAILURES:
        assert file.failing == row.fail + row.error
    if row.file in HIDDEN_FAILURES:
        assert file.failing > row.fail + row.error
        assert any(case.is_inferred for case in file.cases)


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.hostile and row.hostile != "path traversal"], ids=lambda row: row.file
)
def test_hostile_files_are_refused_at_once(row: Row) -> None:
    started = time.process_time()
    file = read_report(row.file, (CORPUS / row.file).read_bytes())
    assert time.process_time() - started < 0.5
    assert file.status is REJECTED
    assert file.problems[0].line is not None


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.parse.startswith(("malformed", "empty"))], ids=lambda row: row.file
)
def test_malformed_files_are_never_taken_as_they_stand(row: Row) -> None:
    file = read(row.file)
    assert file.status in {REPAIRED, REJECTED}
    assert any(problem.line is not None for problem in file.problems)


@pytest.mark.parametrize(
    ("name", "status", "cases", "word"),
    [
        ("enricomi/xml/empty.xml", REJECTED, 0, "empty"),
        ("launchable/broken_xml/broken.xml", REJECTED, 0, "not well-formed"),
        ("enricomi/xml/non-xml.xml", REJECTED, 0, "not well-formed"),
        ("enricomi/junit-xml/non-junit.xml", REJECTED, 0, "<suites>"),
        ("enricomi/junit-xml/pytest/corrupt-xml.xml", REPAIRED, 1, "cut off"),
        ("derived/truncated_60pct__pytest_junit.gloo.standalone.xml", REPAIRED, 61, "cut off"),
        ("mikepenz/corrupt-junit/e2e-tests/corrupt/target/sf-reports/TEST-test.CorruptTest.xml", REPAIRED, 1, "cut off"),
        ("mikepenz/junit-web-test/expected.xml", REPAIRED, 6, "'<' in 1 attribute"),
        ("doctest/generators.cpp_junit.txt", REPAIRED, 163, "text after"),
        ("doctest/subcases.cpp_junit.txt", REPAIRED, 31, "text before"),
        ("doctest/count_junit.txt", REJECTED, 0, "nothing follows"),
        ("derived/leading_blank_lines_before_decl__testsuite-root.xml", REPAIRED, 5, "blank lines"),
        ("derived/two_documents_concatenated__multiple_12_13.xml", REPAIRED, 4, "both are read"),
        ("derived/charref_x1b__illegal_reference.xml", REPAIRED, 1, "2 broken references"),
        ("derived/raw_esc_bytes__contexts20.xml", REPAIRED, 2, "5 forbidden characters"),
        ("derived/latin1_bytes_in_utf8__XCTestHTMLReport131.xml", REPAIRED, 1, "not UTF-8"),
        ("derived/gzip__surefire_gh-237_FlakyTest.xml.gz", PARSED, 3, ""),
        ("derived/utf16le_bom__pytest_junit.fail.xml", PARSED, 5, ""),
        ("derived/utf16be_bom_but_decl_utf8__pytest_junit.fail.xml", PARSED, 5, ""),
        ("enricomi/junit-xml/xunit/xunit.xml", PARSED, 2, "declares 173"),
        ("xunit-plugin/types/junit/testcase4/input.xml", PARSED, 1, ""),
        ("jenkins-junit/testXxe-xxe.xml", REJECTED, 0, "DOCTYPE"),
        ("jenkins-junit/testXxe-oob.xml", REJECTED, 0, "not well-formed"),
        ("allure2/invalid.xml", REJECTED, 0, "<test-suite>"),
        ("enricomi/trx/mstest/pickles.trx", REJECTED, 0, "trx"),
        ("launchable/robot/single-output.xml", REJECTED, 0, "--xunit"),
        ("surefire/fixture/testsuitexmlparser/failsafe-summary.xml", REJECTED, 0, "summary"),
        ("datadog/invalid.xml", REPAIRED, 3, "<nothing>"),
        ("enricomi/junit-xml/no-cases.xml", PARSED, 0, ""),
        ("enricomi/junit-xml/no-cases-but-tests.xml", PARSED, 0, "declares 6 tests and holds 0"),
        ("jenkins-junit/TEST-null.xml", PARSED, 1, ""),
        ("launchable/ctest/Testing/latest/Test.xml", PARSED, 4, ""),
        ("xunit-plugin/types/ctest/testcase3/input.xml", PARSED, 2, ""),
    ],
)  # fmt: skip
def test_each_quirk_has_its_file(name: str, status: FileStatus, cases: int, word: str) -> None:
    file = read(name)
    assert (file.status, len(file.cases)) == (status, cases)
    assert word in " ".join(str(problem) for problem in file.problems)


@pytest.mark.parametrize("version", ["16.6.1", "16.7"])
def test_bare_attempts_of_pytest_rerunfailures_are_failures(version: str) -> None:
    name = f"generated/pytest-rerunfailures-{version}.xml"
    assert only(name, "test_always_fails") == [(1, "failed"), (2, "failed"), (3, "failed")]
    assert only(name, "test_random") == [(1, "failed"), (2, "passed")]
    assert only(name, "test1") == [(1, "failed"), (2, "failed"), (3, "error")]
    older = "generated/pytest-rerunfailures-16.6.xml"
    assert only(older, "test1") == [(1, "failed"), (2, "failed"), (3, "error")]


@pytest.mark.parametrize(
    ("name", "key", "expected"),
    [
        ("dorny/external/java/TEST-org.apache.pulsar.AddMissingPatchVersionTest.xml", "testVersionStrings", [(1, "failed"), (2, "failed")]),
        ("mikepenz/junit-server-test/report.xml", "TestWebSocketReconnectRace", [(1, "failed"), (2, "passed")]),
        ("mikepenz/flaky_retries/flaky_all_failures.xml", "test_always_fails", [(1, "failed"), (2, "failed"), (3, "error")]),
        ("mikepenz/flaky_retries/flaky_success_first.xml", "test_success_first", [(1, "passed"), (2, "failed"), (3, "error")]),
        ("mikepenz/maven_surefire_flaky/surefire-report.xml", "createWebhook", [(1, "failed"), (2, "passed")]),
        ("jenkins-junit/gh-237/TEST-io.olamy.AlwaysFailTest.xml", "testApp", [(n, "failed") for n in range(1, 5)]),
        ("generated/gtest-output-test_all_failures.xml", "TheSecondTestWithThisNameShouldFail", [(1, "passed"), (1, "failed")]),
        ("nextest/stress-test-junit.xml", "test_expr_deps", [(1, "passed"), (2, "passed")]),
        ("jenkins-junit/junit-report-bad-duration.xml", "testDummyMethod", [(1, "unknown"), (2, "passed")]),
        ("generated/pytest-xdist-worker-crash.xml", "test_crash", [(1, "crashed")]),
        ("jenkins-junit/junit-report-empty-testcasename.xml", "", [(1, "failed")]),
        ("generated/gtest-no_test_nontestsuite_failure.xml", "", [(1, "failed")]),
    ],
)  # fmt: skip
def test_the_same_name_twice(name: str, key: str, expected: list[tuple[int, str]]) -> None:
    assert only(name, key) == expected


def test_rows_browsers_and_states_of_the_producers() -> None:
    jest = read("dorny/external/jest/jest-test-results.xml")
    assert Counter(case.outcome for case in jest.cases) == {
        Outcome.PASSED: 4207,
        Outcome.FAILED: 2,
        Outcome.SKIPPED: 30,
    }
    assert {case.repetition for case in jest.cases} == {Repetition.SINGLE, Repetition.ROW}
    browsers = Counter(case.identity.variant for case in read("launchable/playwright/report.xml").cases)
    assert set(browsers) == {"chromium", "firefox", "webkit"}
    assert Counter(case.outcome for case in read("mikepenz/issues/testDisabled.xml").cases)[Outcome.SKIPPED] == 10
    tolerated = read("mikepenz/issues/testFailedDisabled.xml")
    assert [case.outcome for case in tolerated.cases] == [Outcome.EXPECTED_FAILURE]
    status = read("allure2/TEST-status-attribute.xml")
    assert Counter(case.outcome for case in status.cases) == {Outcome.SKIPPED: 2, Outcome.PASSED: 1}
    prove = read("launchable/prove/report.xml")
    assert sum(case.outcome is Outcome.ERROR for case in prove.cases) == 1
    several = read("mikepenz/multiple_failures/test_multiple_failures.xml")
    assert Counter(case.outcome for case in several.cases) == {Outcome.FAILED: 2, Outcome.PASSED: 1, Outcome.SKIPPED: 1}
    assert several.cases[0].detail is not None
    assert "Second" in several.cases[0].detail


def test_ansi_is_gone_from_signatures_and_kept_in_messages() -> None:
    file = read("derived/raw_esc_bytes__contexts20.xml")
    assert file.cases[1].signature == "failed||expected got #"
    assert "\ufffd[0;34m" in (file.cases[1].message or "")
    pytest_file = read("generated/pytest-ansi-escapes.xml")
    failed = next(case for case in pytest_file.cases if case.outcome is Outcome.FAILED)
    assert "x1B" not in failed.signature


def test_times_of_several_locales_in_one_file() -> None:
    file = read("derived/times_comma_locale__surefire2707_testng198_kotest2756.xml")
    found = {case.identity.name: case.duration_s for case in file.cases}
    assert found == {
        "en_thousands": 14029.255,
        "de_decimal": None,
        "de_thousands": 1024.12,
        "kotest_unit": pytest.approx(80.803e-6),
        "nan": None,
        "empty": None,
        "sci": 1.5e-4,
    }


def test_one_suite_over_several_files_and_the_same_suite_twice() -> None:
    parts = [f"jenkins-junit/JENKINS-12457/TestSuite_{part}.xml" for part in ("a1", "a2")]
    assert sum(case.duration_s or 0 for case in run_of(*parts).cases) == pytest.approx(172.98)
    b = "jenkins-junit/JENKINS-12457/TestSuite_b.xml"
    run = run_of(b, b, "jenkins-junit/JENKINS-12457/TestSuite_b_nonduplicate.xml")
    assert len(run.cases) == 2
    folder = "jenkins-junit/JENKINS-48583/"
    run = run_of(*(folder + name for name in ("TEST-com.sample.test.TestMessage.xml", "TEST-com.sample.test.TestMessage2.xml", "TESTS-TestSuites.xml")))  # fmt: skip
    assert len(run.cases) == 3
    assert {case.attempt for case in run.cases} == {1}


def test_the_whole_corpus_as_one_upload_keeps_every_readable_file() -> None:
    started = time.process_time()
    run = run_of(*BY_NAME)
    assert time.process_time() - started < 20
    assert run.status.value == "partial"
    keys = Counter((case.identity, case.attempt) for case in run.cases)
    assert max(keys.values()) == 1
    assert sum(file.status is REJECTED for file in run.files) >= 20
    assert len(run.cases) > 16_000
