"""pytest: order, hostile names, how a session can end, and a project whose packages are named like ours."""

import dataclasses
import sys

import pytest

from gpu_runner.protocol import Treatment, TreatmentKind
from tests.runner.harness import fields

PYTEST = {"framework": "pytest"}


def test_any_order_runs_also_where_pytest_would_group_by_fixtures(make_runner):
    test_file = """
import pytest

@pytest.fixture(scope="module", params=["x", "y"])
def thing(request):
    return request.param

def test_a(thing): pass
def test_b(thing): pass
"""
    runner = make_runner({"test_one.py": test_file, "test_two.py": "def test_c(): pass"}, **PYTEST)
    # pytest itself groups by the parameter: a[x] b[x] a[y] b[y].
    order = (
        "test_one.py::test_b[y]", "test_two.py::test_c", "test_one.py::test_a[x]", "test_one.py::test_a[y]",
        "test_one.py::test_b[x]",
    )  # fmt: skip
    report = runner.execute(*order).report
    assert tuple(result.test for result in report.results) == order
    assert [result.position for result in report.results] == [0, 1, 2, 3, 4]


def test_hostile_names_are_listed_selected_and_run(make_runner):
    values = ["a b", "c,d", "#e", "[f]", "g::h", "été 测试", "-k", "@i", "j\\k", "l\nm", "", "n]", "'\""]
    test_file = f"import pytest\n@pytest.mark.parametrize('value', {values!r})\ndef test_it(value): pass\n"
    runner = make_runner({"sub dir,#/test_été.py": test_file}, **PYTEST)
    tests = runner.prepare("sub dir,#/test_été.py::test_it[a b]").of("prepared")[0].tests
    assert len(tests) == len(values)
    said = runner.execute(*reversed(tests))
    assert said.outcomes == dict.fromkeys(tests, "passed")
    assert tuple(result.test for result in said.report.results) == tests[::-1]


def test_a_file_none_of_whose_tests_run_is_not_imported(make_runner):
    files = {
        "test_leaky.py": "import os\nos.environ['LEAK'] = '1'\ndef test_leaky(): pass",
        "test_victim.py": "import os\ndef test_victim(): assert 'LEAK' not in os.environ",
    }
    runner = make_runner(files, **PYTEST)
    victim = "test_victim.py::test_victim"
    said = runner.block((0, ("test_leaky.py::test_leaky", victim), 1), (0, (victim,), 1))
    assert [report.results[-1].outcome.value for report in said.of("execution")] == ["failed", "passed"]


ENDINGS = {
    "os._exit(3)": ("crashed", "exit", "exit code 3"),
    "os.kill(os.getpid(), 11)": ("crashed", "SIGSEGV", "SIGSEGV"),
    "os.kill(os.getpid(), 9)": ("crashed", "SIGKILL", "SIGKILL"),
    "pytest.exit('enough')": ("error", "exit", "enough"),
    "time.sleep(60)": ("timed_out", "timeout", "no end after 1.5 s"),
}


def test_a_session_that_ends_in_a_test_says_how_and_the_rest_has_not_run(make_runner):
    files = {
        f"test_{number}.py": f"""
import os, time, pytest
def test_first(): print("hello")
def test_ends(): {statement}
def test_last(): pass
"""
        for number, statement in enumerate(ENDINGS)
    }
    runner = make_runner(files, framework="pytest", test_timeout_s=1.5)
    lists = [
        tuple(f"test_{number}.py::test_{name}" for name in ("first", "ends", "last")) for number in range(len(ENDINGS))
    ]
    reports = runner.block(*((0, tests, 1) for tests in lists)).of("execution")
    for report, (statement, (outcome, kind, part)) in zip(reports, ENDINGS.items(), strict=True):
        first, ended, last = report.results
        outcomes = [result.outcome.value for result in report.results]
        assert (statement, outcomes) == (statement, ["passed", outcome, "not_run"])
        assert first.output == "hello\n"
        assert ended.failure_type == kind
        assert part in ended.message
        assert ended.test in last.message


def test_set_up_and_teardown_errors_belong_to_their_test(make_runner):
    test_file = """
import pytest
@pytest.fixture
def broken(): raise RuntimeError("no device")
@pytest.fixture
def leaking():
    yield
    raise ValueError("still in use")
def test_set_up(broken): pass
def test_teardown(leaking): pass
def test_both(leaking): assert 1 == 2
@pytest.mark.xfail(strict=True, reason="r")
def test_unexpected_pass(): pass
@pytest.mark.xfail(reason="r")
def test_lenient_pass(): pass
@pytest.mark.xfail(reason="r")
def test_expected(): assert False
def test_skips(): pytest.skip("no GPU")
"""
    runner = make_runner({"test_it.py": test_file}, **PYTEST)
    tests = runner.prepare("test_it.py::test_skips").of("prepared")[0].tests
    said = runner.execute(*tests)
    assert {test.split("::")[1]: outcome for test, outcome in said.outcomes.items()} == {
        "test_set_up": "error", "test_teardown": "error", "test_both": "failed", "test_unexpected_pass": "failed",
        "test_lenient_pass": "passed", "test_expected": "expected_failure", "test_skips": "skipped",
    }  # fmt: skip
    results = {result.test.split("::")[1]: result for result in said.report.results}
    assert (results["test_set_up"].failure_type, results["test_set_up"].message) == (
        "RuntimeError",
        "RuntimeError: no device",
    )
    assert results["test_teardown"].message == "ValueError: still in use"
    assert results["test_both"].message == "assert 1 == 2"
    assert "no GPU" in results["test_skips"].message


def test_a_repeated_test_keeps_its_attempts(make_runner):
    # A retry plugin, as the public ones do it: the whole protocol again, the first failure reported as "rerun".
    conftest = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    for attempt in range(3):
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        failed = [report for report in reports if report.failed]
        for report in reports:
            if report.failed and attempt < 2:
                report.outcome = "rerun"
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if not failed:
            break
    return True
"""
    test_file = (
        "tries = []\ndef test_flaky():\n    tries.append(1)\n    assert len(tries) == 2\ndef test_fine(): pass\n"
    )
    runner = make_runner({"conftest.py": conftest, "test_it.py": test_file}, **PYTEST)
    report = runner.execute("test_it.py::test_flaky", "test_it.py::test_fine").report
    assert [(r.test[12:], r.attempt, r.outcome.value, r.position) for r in report.results] == [
        ("test_flaky", 1, "failed", 0),
        ("test_flaky", 2, "passed", 1),
        ("test_fine", 1, "passed", 2),
    ]


@pytest.mark.parametrize("arguments", [(), ("-s",), ("-rA", "--show-capture=all")])
def test_records_come_from_properties_output_and_events_also_without_capture(make_runner, arguments):
    test_file = """
import json, os
def test_records(record_property):
    record_property("likewise.counter.by_property", 1)
    print("LIKEWISE_COUNTER by_output=2")
    with open(os.environ["LIKEWISE_EVENTS"], "a") as events:
        events.write(json.dumps({"metric": "kl", "value": 0.5, "sample": 3, "test": "test_it.py::test_records"}) + "\\n")
        events.write(json.dumps({"counter": "by_event", "value": 7, "test": "test_it.py::test_fails"}) + "\\n")
def test_fails():
    print("LIKEWISE_COUNTER by_output=4")
    assert False
"""
    files = {"test_it.py": test_file}
    runner = make_runner(files, framework="pytest", arguments=arguments)
    report = runner.execute("test_it.py::test_records", "test_it.py::test_fails").report
    assert report.counters == {"by_property": 1, "by_output": 6, "by_event": 7}
    # Where nothing is captured nobody can tell whose line it was: it counts for the execution.
    own = {} if "-s" in arguments else {"by_output": 4}
    assert report.results[1].counters == {**own, "by_event": 7}
    assert [(item.name, item.sample, item.test) for item in report.measurements] == [
        ("kl", 3, "test_it.py::test_records")
    ]


def test_a_project_with_packages_named_like_ours_runs_untouched(make_runner):
    files = {
        "service/__init__.py": "WHOSE = 'theirs'",
        "tests/__init__.py": "",
        "tests/helpers.py": "WHOSE = 'theirs'",
        "tests/test_it.py": """
import sys
import pytest
import service
from tests.helpers import WHOSE

def test_theirs():
    assert service.WHOSE == WHOSE == "theirs"

@pytest.mark.parametrize("name", ["workers", "gpu_runner", "migrations"])
def test_ours_are_not_there(name):
    with pytest.raises(ModuleNotFoundError):
        __import__(name)

def test_one_plugin_is_ours():
    assert [name for name in sys.modules if "likewise" in name and "editable" not in name] == ["likewise_pytest_plugin"]
""",
    }
    runner = make_runner(files, **PYTEST)
    tests = runner.prepare("tests/test_it.py::test_theirs").of("prepared")[0].tests
    assert set(runner.execute(*tests).outcomes.values()) == {"passed"}


def test_tests_stay_in_one_process_where_the_project_asks_for_many(make_runner):
    pytest.importorskip("xdist")
    files = {
        "pytest.ini": "[pytest]\naddopts = -p xdist -n 4",
        "test_it.py": "import os\nprocesses = set()\ndef test_a(): processes.add(os.getpid())\ndef test_b(): assert processes == {os.getpid()}",
    }
    said = make_runner(files, **PYTEST).execute("test_it.py::test_a", "test_it.py::test_b")
    assert set(said.outcomes.values()) == {"passed"}


def test_a_file_that_cannot_be_imported_is_named(make_runner):
    files = {"test_broken.py": "import no_such_module_anywhere", "test_fine.py": "def test_fine(): pass"}
    prepared = make_runner(files, **PYTEST).prepare("test_fine.py::test_fine").of("prepared")[0]
    assert prepared.error_code == "list_failed"
    assert "test_broken.py" in prepared.error
    assert "no_such_module_anywhere" in prepared.error


def test_the_same_settings_hold_for_a_part_of_the_suite(make_runner):
    files = {
        "pytest.ini": "[pytest]\nmarkers = outer",
        "deep/pytest.ini": "[pytest]\nmarkers = inner",
        "deep/test_it.py": "def test_it(pytestconfig): assert pytestconfig.getini('markers')[0] == 'outer'",
        "test_other.py": "def test_other(): pass",
    }
    runner = make_runner(files, **PYTEST)
    runner.arm(Treatment(TreatmentKind.ALONE))
    prepared = runner.prepare("deep/test_it.py::test_it").of("prepared")[0]
    said = runner.block((0, prepared.tests, 1))
    assert said.outcomes == {"deep/test_it.py::test_it": "passed"}


def test_an_interpreter_without_pytest_is_a_missing_framework(make_runner, tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    python.chmod(0o755)
    runner = make_runner({"test_it.py": "def test_it(): pass"}, framework="pytest")
    for name, problem in ((str(python), "has no pytest"), ("no/such/python", "cannot be started")):
        runner.suite = dataclasses.replace(runner.suite, python=name)
        prepared = runner.prepare("test_it.py::test_it").of("prepared")[0]
        assert prepared.error_code == "missing_framework"
        assert f"{name}' {problem}" in prepared.error


def test_versions_of_python_and_packages_are_part_of_the_software(make_runner):
    report = make_runner({"test_it.py": "def test_it(): pass"}, **PYTEST).execute("test_it.py::test_it").report
    software = fields(report, "software")
    assert software["python"] == sys.version.split()[0]
    assert set(software["packages"]) <= {"torch", "triton", "numpy", "transformers", "pytest-xdist"}
    assert fields(report, "suite")["framework_version"] == pytest.__version__
