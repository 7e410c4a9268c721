"""ctest: order, hostile names, fixtures, the outcomes that its own report tells apart, and the PyPI ctest."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_runner.protocol import Treatment, TreatmentKind
from tests.runner.harness import ctest_files, is_alive, read_numbers

HOSTILE = ["a b", "c,d", "#e", "[f]", "g]=]h", 'i"j', "$k", "l;m", "n\\o", "p(q)", "été 测试", "-r", "..."]
NO_BUILD = {"framework": "ctest"}


def test_any_order_runs_and_is_told(make_runner):
    script = 'echo "$0" >> "$XDG_CACHE_HOME/order"; cat "$XDG_CACHE_HOME/order"'
    runner = make_runner(ctest_files(("a", script), ("b", script), ("c", script)), **NO_BUILD)
    report = runner.execute("c", "a", "b")
    assert [(result.test, result.position) for result in report.report.results] == [("c", 0), ("a", 1), ("b", 2)]
    assert report.report.results[2].output.count("sh") == 3


def test_hostile_names_are_listed_selected_and_run(make_runner):
    runner = make_runner(ctest_files(*((name, "echo ran") for name in HOSTILE)), **NO_BUILD)
    assert list(runner.prepare("a b").of("prepared")[0].tests) == HOSTILE
    said = runner.execute(*reversed(HOSTILE))
    assert said.outcomes == dict.fromkeys(HOSTILE, "passed")
    assert [result.test for result in said.report.results] == HOSTILE[::-1]


def test_a_test_named_twice_runs_twice(make_runner):
    script = 'test -e "$HOME/seen" && exit 1; touch "$HOME/seen"'
    report = make_runner(ctest_files(("a", script)), **NO_BUILD).execute("a", "a").report
    assert [(r.test, r.attempt, r.outcome.value) for r in report.results] == [("a", 1, "passed"), ("a", 2, "failed")]


def test_outcomes_are_told_apart(make_runner):
    tests = [
        ("passes", "true"), ("fails", "exit 3"), ("segfaults", "ulimit -c 0; kill -SEGV $$"), ("killed", "kill -9 $$"),
        ("hangs", "sleep 60"), ("skips", "exit 77"), ("skips_by_word", "echo NO DEVICE"), ("disabled", "true"),
        ("lacks_file", "true"), ("setup", "false"), ("needs_setup", "true"), ("will_fail", "false"), ("no_match", "true"),
    ]  # fmt: skip
    properties = """
        set_tests_properties(skips PROPERTIES SKIP_RETURN_CODE 77)
        set_tests_properties(skips_by_word PROPERTIES SKIP_REGULAR_EXPRESSION "NO DEVICE")
        set_tests_properties(disabled PROPERTIES DISABLED TRUE)
        set_tests_properties(lacks_file PROPERTIES REQUIRED_FILES /nonexistent)
        set_tests_properties(setup PROPERTIES FIXTURES_SETUP DB)
        set_tests_properties(needs_setup PROPERTIES FIXTURES_REQUIRED DB)
        set_tests_properties(will_fail PROPERTIES WILL_FAIL TRUE)
        set_tests_properties(no_match PROPERTIES PASS_REGULAR_EXPRESSION "one;two")
        set_tests_properties(hangs PROPERTIES TIMEOUT 0.3)
        add_test(lacks_program /nonexistent/program)
    """
    runner = make_runner(ctest_files(*tests, properties=properties), **NO_BUILD)
    said = runner.execute(*(name for name, _ in tests), "lacks_program")
    assert said.outcomes == {
        "passes": "passed", "fails": "failed", "segfaults": "crashed", "killed": "crashed", "hangs": "timed_out",
        "skips": "skipped", "skips_by_word": "skipped", "disabled": "skipped", "lacks_file": "not_run",
        "setup": "failed", "needs_setup": "not_run", "will_fail": "passed", "no_match": "failed",
        "lacks_program": "not_run",
    }  # fmt: skip
    results = {result.test: result for result in said.report.results}
    assert results["fails"].failure_type == "exit code 3"
    assert results["segfaults"].failure_type == "SEGFAULT"
    assert results["needs_setup"].message == "Fixture dependency failed"
    assert results["no_match"].message.startswith("Required regular expression not found")
    assert results["lacks_file"].position is None


def test_properties_reach_the_test(make_runner):
    properties = """
        set_tests_properties([==[a]==] PROPERTIES ENVIRONMENT "ONE=1;TWO=x\\;y #z" WORKING_DIRECTORY "/")
    """
    runner = make_runner(ctest_files(("a", 'echo "$ONE|$TWO|$PWD"'), properties=properties), **NO_BUILD)
    assert runner.execute("a").report.results[0].output == "1|x;y #z|/\n"


def test_listing_follows_cost_and_dependencies_as_ctest_runs_them(make_runner):
    properties = """
        set_tests_properties(c PROPERTIES COST 10)
        set_tests_properties(a PROPERTIES DEPENDS d)
    """
    files = ctest_files(*((name, "true") for name in "abcd"), properties=properties)
    assert make_runner(files, **NO_BUILD).prepare("a").of("prepared")[0].listing == ("c", "d", "a", "b")


def test_a_fixture_that_other_tests_require_cannot_be_excluded(make_runner):
    properties = """
        set_tests_properties(start PROPERTIES FIXTURES_SETUP server)
        set_tests_properties(user PROPERTIES FIXTURES_REQUIRED server)
    """
    scripts = [(name, "true") for name in ("start", "user", "victim")]
    runner = make_runner(ctest_files(*scripts, properties=properties), **NO_BUILD)
    runner.arm(Treatment(TreatmentKind.EXCLUDE, tests=("start",)))
    runner.arm(Treatment(TreatmentKind.EXCLUDE, tests=("start", "user")))
    refused, made = runner.prepare("victim").of("prepared")
    assert refused.error_code == "bad_treatment"
    assert "'start' cannot be left out" in refused.error
    assert made.tests == ("victim",)


def test_a_victim_alone_keeps_the_fixtures_that_it_requires(make_runner):
    properties = """
        set_tests_properties(start PROPERTIES FIXTURES_SETUP server)
        set_tests_properties(stop PROPERTIES FIXTURES_CLEANUP server)
        set_tests_properties(victim PROPERTIES FIXTURES_REQUIRED server)
    """
    scripts = [
        ("other", "true"),
        ("stop", 'rm "$HOME/up"'),
        ("victim", 'test -e "$HOME/up"'),
        ("start", 'touch "$HOME/up"'),
    ]
    runner = make_runner(ctest_files(*scripts, properties=properties), **NO_BUILD)
    runner.arm(Treatment(TreatmentKind.ALONE))
    tests = runner.prepare("victim").of("prepared")[0].tests
    assert tests == ("start", "victim", "stop")
    assert runner.block((0, tests, 1), victim="victim").outcomes == dict.fromkeys(tests, "passed")


def test_a_timed_out_test_takes_its_orphans_with_it_before_the_next_test(make_runner, tmp_path):
    note = tmp_path / "orphan"
    # The grandchild's parent exits, so that ctest's own kill does not find it (facts/inputs.md, fact 4).
    hang = f"sh -c 'setsid sleep 300 & echo $! > {note}'; sleep 300"
    check = f"n=0; while kill -0 $(cat {note}) 2>/dev/null; do n=$((n+1)); [ $n -lt 40 ] || exit 1; sleep 0.05; done"
    runner = make_runner(ctest_files(("hangs", hang), ("after", check)), framework="ctest", test_timeout_s=0.5)
    assert runner.execute("hangs", "after").outcomes == {"hangs": "timed_out", "after": "passed"}


def test_a_daemon_that_a_passing_test_starts_lives_until_the_suite_ends(make_runner, tmp_path):
    note = tmp_path / "daemon"
    start = f"setsid sleep 300 > /dev/null 2>&1 & echo $! > {note}"
    runner = make_runner(ctest_files(("start", start), ("use", f"kill -0 $(cat {note})")), **NO_BUILD)
    said = runner.execute("start", "use")
    assert said.outcomes == {"start": "passed", "use": "passed"}
    assert [item.value for item in said.report.context if item.name == "left_processes"] == [["sleep 300"]]
    assert not any(is_alive(pid) for pid in read_numbers(note))


def test_the_timeout_of_the_suite_ends_the_running_test_and_the_rest_has_not_run(make_runner):
    files = ctest_files(("first", "true"), ("long", "sleep 60"), ("last", "true"))
    started = time.monotonic()
    said = make_runner(files, framework="ctest", timeout_s=1.0).execute("first", "long", "last")
    assert said.outcomes == {"first": "passed", "long": "timed_out", "last": "not_run"}
    assert time.monotonic() - started < 20


def test_a_long_output_keeps_its_tail_and_its_counters(make_runner):
    script = "echo LIKEWISE_COUNTER early=1; seq 1 200000; echo the reason; exit 1"
    report = make_runner(ctest_files(("a", script)), **NO_BUILD).execute("a").report
    assert report.counters == {"early": 1}
    assert report.results[0].output.endswith("the reason\n")
    assert len(report.results[0].output) == 16 * 1024


def test_tests_of_one_name_in_two_folders_are_told_apart(make_runner):
    files = {
        "CTestTestfile.cmake": "subdirs(one two)",
        "one/CTestTestfile.cmake": "add_test(same sh -c true)",
        "two/CTestTestfile.cmake": "add_test(same sh -c false)",
    }
    runner = make_runner(files, **NO_BUILD)
    assert runner.prepare("same").of("prepared")[0].tests == ("same", "same (2)")
    assert runner.execute("same", "same (2)").outcomes == {"same": "passed", "same (2)": "failed"}


def test_arguments_select_when_tests_are_listed(make_runner):
    runner = make_runner(ctest_files(("one", "true"), ("two", "true")), framework="ctest", arguments=("-E", "two"))
    assert runner.prepare("one").of("prepared")[0].tests == ("one",)


@pytest.mark.parametrize("which", ["beside the interpreter", "on the PATH"])
def test_ctest_is_found_beside_the_interpreter_or_on_the_path(make_runner, tmp_path, which):
    beside = Path(sys.executable).parent / "ctest"
    elsewhere = next((found for found in ("/usr/bin/ctest", "/usr/local/bin/ctest") if Path(found).exists()), None)
    wanted = beside if which == "beside the interpreter" else elsewhere
    if wanted is None or not Path(wanted).exists():
        pytest.skip(f"no ctest {which}")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "git", "true", *(["ctest"] if which == "on the PATH" else [])):
        (tools / name).symlink_to(elsewhere if name == "ctest" else shutil.which(name))
    runner = make_runner(ctest_files(("one", "true")), **NO_BUILD)
    said = runner.prepare("one", env={"PATH": str(tools), "HOME": os.environ.get("HOME", "/")})
    versions = [item.value for item in said.of("prepared")[0].context if item.name == "framework_version"]
    told = subprocess.run([wanted, "--version"], capture_output=True, text=True, check=True).stdout
    assert versions == [told.split()[2]]
    assert runner.execute("one").outcomes == {"one": "passed"}
