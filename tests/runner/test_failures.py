"""What cannot be done is a sentence with the value and the way out, an exit code, and no half result."""

import json
import os
import subprocess
import sys

import pytest

from gpu_runner.protocol import ArmJob, TestsMode, Treatment, TreatmentKind, write_line
from tests.runner.harness import ROOT, command_line, commit, ctest_files, git


@pytest.fixture
def runner(make_runner):
    return make_runner(ctest_files(("one", "true"), ("two", "true")), framework="ctest")


def error_of(said):
    prepared = said.of("prepared")
    assert said.exit_code == 0
    assert said.is_done
    return prepared[0].error_code, prepared[0].error


def test_a_suite_that_does_not_build_names_command_and_output(make_runner):
    runner = make_runner(ctest_files(("one", "true")), framework="ctest", build=("true", "echo no compiler; exit 3"))
    code, error = error_of(runner.prepare("one"))
    assert code == "build_failed"
    assert all(part in error for part in ("echo no compiler; exit 3", "exit code 3", "no compiler"))
    said = runner.execute("one")
    assert (said.exit_code, said.failure.code, said.of("execution")) == (1, "build_failed", [])


def test_a_build_that_never_ends_is_ended(make_runner):
    runner = make_runner(ctest_files(("one", "true")), framework="ctest", build=("sleep 300",), build_timeout_s=0.5)
    code, error = error_of(runner.prepare("one"))
    assert code == "build_failed"
    assert "timed_out" in error


def test_one_arm_that_cannot_be_prepared_leaves_the_others(make_runner):
    runner = make_runner(ctest_files(("one", "true")), framework="ctest", build=('test -z "$BREAK"',))
    runner.arm()
    runner.arm(Treatment(TreatmentKind.BUILD, environment={"BREAK": "1"}))
    fine, broken = runner.prepare("one").of("prepared")
    assert (fine.error_code, fine.tests, broken.error_code) == (None, ("one",), "build_failed")


def test_an_unknown_framework_names_the_known_ones(make_runner):
    said = make_runner({"a": "x"}, framework="nose").prepare("one")
    assert (said.exit_code, said.failure.code) == (1, "missing_framework")
    assert "'nose'" in said.failure.message
    assert "ctest" in said.failure.way_out


def test_a_missing_ctest_is_a_missing_framework(runner, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sh").symlink_to("/bin/sh")
    # An interpreter without a ctest beside it, as on a box without PyPI's cmake.
    (tools / "python3").symlink_to(os.path.realpath(sys.executable))
    (tmp_path / "job.json").write_text(write_line(runner.prepare_job("one")))
    with (tmp_path / "job.json").open() as job:
        done = subprocess.run(
            [tools / "python3", "-m", "gpu_runner", "run"], stdin=job, capture_output=True, text=True, cwd=ROOT,
            env={"PATH": str(tools)}, check=True,
        )  # fmt: skip
    assert '"error_code":"missing_framework"' in done.stdout
    assert "pip install cmake" in done.stdout


def test_an_empty_selection_and_an_unknown_test_are_told_apart(runner):
    runner.arm(Treatment(TreatmentKind.EXCLUDE, tests=("one", "two")))
    runner.arm(Treatment(TreatmentKind.EXCLUDE, tests=("twoo",)))
    empty, unknown = runner.prepare("one").of("prepared")
    assert empty.error_code == "no_tests"
    assert unknown.error_code == "no_such_test"
    assert "did you mean 'two'" in unknown.error
    assert unknown.listing == ("one", "two")


def test_a_folder_without_tests_is_no_tests(make_runner):
    assert error_of(make_runner({"CTestTestfile.cmake": ""}, framework="ctest").prepare("one"))[0] == "no_tests"


def test_a_test_dir_that_is_no_build_folder_is_named(make_runner):
    runner = make_runner({"a": "x"}, framework="ctest", test_dir="nowhere")
    code, error = error_of(runner.prepare("one"))
    assert code in {"list_failed", "no_tests"}
    assert "nowhere" in error


def test_a_block_with_a_test_that_the_tree_lacks_runs_nothing(runner):
    said = runner.execute("one", "three")
    assert (said.failure.code, said.of("execution")) == ("no_such_test", [])
    assert "'three'" in said.failure.message


def test_a_block_without_tests_runs_nothing(runner):
    said = runner.block((0, (), 1), victim="one")
    assert (said.failure.code, said.of("execution")) == ("no_tests", [])


def test_a_slot_that_cannot_be_written_is_named(runner, tmp_path):
    (tmp_path / "file").write_text("in the way")
    runner.slot = tmp_path / "file" / "slot"
    said = runner.execute("one")
    assert (said.exit_code, said.failure.code) == (1, "slot_unwritable")
    assert str(runner.slot) in said.failure.message


def test_a_source_that_does_not_exist_is_named(runner, tmp_path):
    runner.source = tmp_path / "nowhere"
    said = runner.prepare("one")
    assert (said.failure.code, "nowhere" in said.failure.message) == ("no_source", True)


@pytest.mark.parametrize("name", ["0" * 40, "--upload-pack=touch pwned", "no-branch"])
def test_a_commit_that_the_source_lacks_is_named_and_never_an_option(demo_of_ctest, name):
    demo_of_ctest.arms.append(ArmJob(0, "control", name))
    code, error = error_of(demo_of_ctest.prepare("spec_decode_gate"))
    assert code == "no_such_commit"
    assert name in error


def test_arms_at_other_commits_are_checked_out_and_what_only_one_has_is_named(make_runner, tmp_path):
    runner = make_runner({"unused": "x"}, framework="ctest")
    source = tmp_path / "repository"
    source.mkdir()
    old = commit(source, ctest_files(("one", "true")))
    new = commit(source, ctest_files(("one", "true"), ("two", "true")))
    # A commit that no branch holds any more.
    git(source, "reset", "--quiet", "--hard", old)
    runner.source = source
    runner.arm(commit=old)
    runner.arm(Treatment(TreatmentKind.COMMIT, commit=new), commit=old)
    left_out = runner.prepare("one").of("prepared")
    assert [(arm.tests, arm.left_out) for arm in left_out] == [(("one",), ("two",))] * 2
    kept = runner.prepare("one", TestsMode.AS_BUILT).of("prepared")
    assert [(arm.tests, arm.only_here) for arm in kept] == [(("one",), ()), (("one", "two"), ("two",))]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ('{"protocol": 2, "type": "prepare"}', "protocol 2"),
        ('{"protocol": 1, "type": "dance"}', "'dance'"),
        ('{"protocol": 1, "type": "done"}', "no job"),
        ('{"protocol": 1, "type": "block", "extra": 1}', "extra"),
    ],
)
def test_a_malformed_job_says_what_is_wrong(tmp_path, text, part):
    (tmp_path / "job").write_text(text)
    with (tmp_path / "job").open() as job:
        done = subprocess.run(command_line("run"), stdin=job, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert '"code":"malformed_job"' in done.stdout
    assert part in done.stdout
    assert done.stderr == ""


def test_doctor_tells_what_is_there_and_what_is_not(tmp_path):
    done = subprocess.run(command_line("doctor", "--json"), capture_output=True, text=True, cwd=ROOT, check=True)
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert checks["pytest"]["found"] == pytest.__version__
    assert checks["process trees"]["is_ok"]
    assert {"ctest", "git", "GPU", "overlay", "memory"} <= set(checks)
    assert all(check["is_ok"] or check["way_out"] for check in checks.values())
    said = subprocess.run(command_line("doctor"), capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert f"pytest: {pytest.__version__}" in said
