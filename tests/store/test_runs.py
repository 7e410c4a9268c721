"""Runs: recorded once, outputs kept once, identities shared between CI reports and experiments."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import func, select

from gpu_runner.protocol import Measurement
from service.domain import RunStatus
from service.ingest import read_report
from service.ingest.identity import TestIdentity, identity_from_node_id
from service.ingest.payload import RunPayload, UploadedFile, metadata_of
from service.record import record_upload
from service.store.catalog import add_commit, add_project, add_suite, add_tests
from service.store.models import CounterRow, MeasurementRow, Output, Result, Run, Test
from service.store.runs import ResultRecord, RunRecord, read_output, record_run
from service.store.session import read, write

NOW = datetime(2026, 1, 1, tzinfo=UTC)
A = TestIdentity("", "", "tests.test_a", "test_one")
B = TestIdentity("", "", "tests.test_a", "test_two")


def record(key: str = "k1", **changes) -> RunRecord:
    results = [
        ResultRecord(A, "failed", output="same text", signature="failed|x", counters={"fired": 3}),
        ResultRecord(B, "passed", output="same text", measurements=[Measurement("kl", 0.25, sample=1)]),
    ]
    return RunRecord(key=key, origin="ci", status=RunStatus.COMPLETE, results=results, counters={"all": 7}, **changes)


def store(given: RunRecord) -> tuple[int, bool]:
    with write() as session:
        project = add_project(session, "acme/engine", None, NOW)
        suite = add_suite(session, project, "unit")
        run, is_new = record_run(session, suite, add_commit(session, project, "a" * 40), given, NOW)
        return run.id, is_new


def count(model) -> int:
    with read() as session:
        return session.scalar(select(func.count()).select_from(model)) or 0


def test_a_run_recorded_twice_is_stored_once(database):
    first, is_new = store(record())
    again, is_new_again = store(record())
    assert (first, is_new, is_new_again) == (again, True, False)
    assert (count(Run), count(Result), count(Output), count(Test)) == (1, 2, 1, 2)
    assert (count(CounterRow), count(MeasurementRow)) == (2, 1)


def test_equal_outputs_are_kept_once_and_read_back_whole(database):
    store(record())
    store(record("k2"))
    assert count(Output) == 1
    with read() as session:
        digest = session.scalars(select(Result.output_digest)).first()
        assert read_output(session, digest) == "same text"


def test_the_runner_s_node_id_and_the_junit_case_are_one_test(database):
    case = b'<testcase classname="tests.test_a.TestX" name="test_y[1]"/>'
    xml = b'<testsuites><testsuite name="pytest" tests="1">' + case + b"</testsuite></testsuites>"
    from_report = read_report("junit.xml", xml).cases[0].identity
    node = "tests/test_a.py::TestX::test_y[1]"
    with write() as session:
        suite = add_suite(session, add_project(session, "acme/engine", None, NOW), "unit")
        first = add_tests(session, suite, {from_report: None})
        second = add_tests(session, suite, {identity_from_node_id(node): node})
        assert list(first.values()) == list(second.values())
        assert session.scalars(select(Test.node)).all() == [node]


GOOD = b'<testsuite name="s" tests="2"><testcase classname="c" name="a"/><testcase classname="c" name="b"><failure message="assert 1 == 2"/></testcase></testsuite>'


def test_a_bad_file_never_drops_a_good_one_and_never_reads_as_green(database):
    metadata = metadata_of(project="acme/engine", sha="b" * 40, run_id="77", job="unit")
    files = (UploadedFile(name="good.xml", content=GOOD), UploadedFile(name="bad.xml", content=b"no xml"))
    done = record_upload(RunPayload(metadata=metadata, files=files))
    assert done.is_new
    assert done.results == 2
    assert done.status is RunStatus.PARTIAL
    assert [file["status"] for file in done.files] == ["parsed", "rejected"]
    again = record_upload(RunPayload(metadata=metadata, files=files))
    assert (again.run_id, again.is_new) == (done.run_id, False)


def test_an_upload_without_a_readable_file_is_a_lost_run(database):
    metadata = metadata_of(project="acme/engine", sha="b" * 40, run_id="78", job="unit")
    done = record_upload(RunPayload(metadata=metadata, files=(UploadedFile(name="e.xml", content=b""),)))
    assert done.status is RunStatus.LOST
    assert done.results == 0


def test_a_failed_job_whose_report_shows_no_failure_is_partial(database):
    metadata = metadata_of(project="acme/engine", sha="b" * 40, run_id="79", job="unit", exit_code=139)
    green = b'<testsuite name="s" tests="1"><testcase classname="c" name="a"/></testsuite>'
    files = (UploadedFile(name="green.xml", content=green),)
    assert record_upload(RunPayload(metadata=metadata, files=files)).status is RunStatus.PARTIAL
