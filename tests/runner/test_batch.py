"""Detached execution: a plan in, evidence out, in an empty environment with a bare interpreter."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gpu_runner.protocol import (
    ArmJob,
    BlockJob,
    ExecutionJob,
    MalformedMessageError,
    Measurement,
    Outcome,
    PlanHeader,
    SuiteDefinition,
    TestResult,
    Treatment,
    TreatmentKind,
    from_json,
    plan_digest,
    read_line,
    to_json,
    write_line,
)
from gpu_runner.tree import tree_hash
from tests.runner.harness import ROOT, ctest_files, understand

BARE = Path(sys.base_prefix) / "bin" / "python3"


@pytest.fixture
def runner(make_runner):
    script = "test $((LIKEWISE_RUN_SEED % 2)) = 0"
    runner = make_runner(ctest_files(("first", "true"), ("second", script)), framework="ctest")
    runner.arm(name="control")
    runner.arm(Treatment(TreatmentKind.EXCLUDE, tests=("first",)), name="treated")
    return runner


def plan(runner, blocks=2, **changes):
    """Return the plan's text; the jobs name another machine's folders, as an exported plan does."""
    prepare = dataclasses.replace(runner.prepare_job("second"), source="/elsewhere", slot_dir="/elsewhere/slot")
    jobs = [
        dataclasses.replace(
            runner.block_job(
                (0, ("first", "second"), 10 + number), (1, (), 11 + number), victim="second", number=number
            ),
            source="/elsewhere",
            slot_dir="/elsewhere/slot",
        )
        for number in range(blocks)
    ]
    header = PlanHeader("", "experiment", tree_hash(runner.source), prepare)
    header = dataclasses.replace(header, **changes)
    header = dataclasses.replace(header, digest=plan_digest(header, jobs))
    return "".join(map(write_line, [header, *jobs]))


def run_batch(runner, text, *options, python=sys.executable):
    command = ["env", "-i", str(python), "-m", "gpu_runner", "batch", "--source", str(runner.source)]
    done = subprocess.run(
        [*command, "--slot", str(runner.slot), *options],
        input=text,
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    return understand(done)


def test_a_plan_runs_in_an_empty_environment_with_a_bare_interpreter(runner):
    if not BARE.exists():
        pytest.skip(f"no interpreter outside the virtual environment at {BARE}")
    text = plan(runner)
    said = run_batch(runner, text, python=BARE)
    assert (said.exit_code, said.is_done) == (0, True)
    evidence = said.of("evidence")[0]
    assert evidence.plan_digest == json.loads(text.splitlines()[0])["digest"]
    assert [arm.tests for arm in said.of("prepared")] == [("first", "second"), ("second",)]
    assert [(r.block, r.arm, r.run_seed, r.results[-1].outcome.value) for r in said.of("execution")] == [
        (0, 0, 10, "passed"), (0, 1, 11, "failed"), (1, 0, 11, "failed"), (1, 1, 12, "passed"),
    ]  # fmt: skip
    assert {message.type for message in said.messages} == {"evidence", "prepared", "execution", "done"}


def test_partial_evidence_is_resumed_without_running_a_whole_block_again(runner, tmp_path):
    text = plan(runner)
    first = run_batch(runner, text)
    partial = tmp_path / "partial.jsonl"
    # Header, two arms, block 0, half of block 1, and a line that was cut.
    partial.write_text("\n".join(first.lines[:6]) + '\n{"arm":1,"posi')
    resumed = run_batch(runner, text, "--resume", str(partial))
    assert resumed.is_done
    before, after = first.of("execution"), resumed.of("execution")
    assert [(r.block, r.arm) for r in after] == [(r.block, r.arm) for r in before]
    assert after[:2] == before[:2]
    assert after[2].started_at > before[3].ended_at


def test_evidence_of_another_plan_is_refused(runner, tmp_path):
    (tmp_path / "other.jsonl").write_text("\n".join(run_batch(runner, plan(runner, blocks=0)).lines))
    said = run_batch(runner, plan(runner), "--resume", str(tmp_path / "other.jsonl"))
    assert (said.exit_code, said.failure.code) == (1, "bad_evidence")


def test_evidence_that_is_not_there_is_refused(runner, tmp_path):
    said = run_batch(runner, plan(runner), "--resume", str(tmp_path / "nowhere.jsonl"))
    assert (said.failure.code, "nowhere.jsonl" in said.failure.message) == ("bad_evidence", True)


def test_a_changed_plan_is_refused(runner):
    said = run_batch(runner, plan(runner).replace('"run_seed":10', '"run_seed":12'))
    assert (said.exit_code, said.failure.code) == (1, "malformed_plan")


@pytest.mark.parametrize("text", ["", "{}\n", '{"protocol":1,"type":"done"}\n'])
def test_what_is_no_plan_is_refused(runner, text):
    assert run_batch(runner, text).failure.code == "malformed_plan"


def test_a_tree_with_one_changed_or_added_file_is_refused(runner):
    text = plan(runner)
    (runner.source / "added.txt").write_text("x")
    said = run_batch(runner, text)
    assert (said.exit_code, said.failure.code) == (1, "tree_differs")
    assert said.of("execution") == []


def test_exported_files_stand_for_the_commit_of_the_control_only(runner):
    runner.arms[0] = dataclasses.replace(runner.arms[0], commit="a" * 40)
    runner.arms[1] = dataclasses.replace(runner.arms[1], commit="a" * 40)
    assert run_batch(runner, plan(runner, blocks=1)).is_done
    runner.arms[1] = dataclasses.replace(runner.arms[1], commit="b" * 40)
    said = run_batch(runner, plan(runner, blocks=1))
    assert (said.failure.code, "b" * 40 in said.failure.message) == ("no_such_commit", True)


def test_tests_other_than_those_of_the_plan_are_refused(runner):
    runner.suite = dataclasses.replace(runner.suite, arguments=("-E", "nothing"))
    job = runner.block_job((0, ("second", "first"), 1), victim="second")
    header = PlanHeader("", "experiment", tree_hash(runner.source), runner.prepare_job("second"))
    header = dataclasses.replace(header, digest=plan_digest(header, [job]))
    said = run_batch(runner, write_line(header) + write_line(job))
    assert (said.failure.code, said.of("execution")) == ("plan_differs", [])


def test_the_same_plan_runs_from_a_git_repository_and_from_its_exported_files(demo_of_ctest, tmp_path):
    victim = "spec_decode_gate"
    job = demo_of_ctest.block_job((0, ("tokenizer_roundtrip", "warm_plan_cache", victim), 3))
    exported = tmp_path / "exported"
    exported.mkdir()
    subprocess.run(f"git -C {demo_of_ctest.source} archive HEAD | tar -x -C {exported}", shell=True, check=True)
    prepare = dataclasses.replace(
        demo_of_ctest.prepare_job(victim),
        suite=dataclasses.replace(demo_of_ctest.suite, arguments=("-R", "tokenizer|warm_plan|spec_decode")),
    )
    job = dataclasses.replace(job, suite=prepare.suite)
    header = PlanHeader("", "experiment", tree_hash(exported), prepare)
    header = dataclasses.replace(header, digest=plan_digest(header, [job]))
    text = write_line(header) + write_line(job)
    from_git = run_batch(demo_of_ctest, text)
    demo_of_ctest.source = exported
    from_files = run_batch(demo_of_ctest, text)
    assert from_git.outcomes == from_files.outcomes
    assert from_git.is_done
    assert from_files.is_done


words = st.text(max_size=8)
tests = st.lists(words, max_size=3).map(tuple)
environments = st.dictionaries(words, st.none() | words, max_size=2)
treatments = st.builds(
    Treatment, st.sampled_from(TreatmentKind), tests, st.none() | st.integers(0, 2**63), environments, st.none() | words
)
results = st.builds(
    TestResult, words, st.sampled_from(Outcome), st.integers(1, 3), st.none() | st.integers(0, 9),
    st.none() | st.floats(0, 1e6), counters=st.dictionaries(words, st.integers(), max_size=2),
)  # fmt: skip


@given(st.lists(treatments, max_size=3), tests, environments, st.integers(0, 2**63))
def test_a_block_job_survives_its_line(items, names, environment, seed):
    suite = SuiteDefinition("s", "ctest", environment={"A": "b"})
    arms = (ArmJob(0, "a", "c", tuple(items)),)
    job = BlockJob("x", "y", suite, arms, "v", "e", 0, 0, (ExecutionJob(0, names, seed, environment),))
    line = write_line(job)
    assert line.count("\n") == 1
    assert read_line(line) == job


@given(results)
def test_a_result_survives_json(result):
    assert from_json(TestResult, json.loads(json.dumps(to_json(result)))) == result


def test_a_message_of_another_protocol_or_with_an_unknown_key_is_refused():
    line = json.loads(write_line(Measurement("m", 1.0)))
    with pytest.raises(MalformedMessageError, match="protocol None"):
        read_line(json.dumps(line))
    with pytest.raises(MalformedMessageError, match="surprise"):
        read_line('{"type":"done","protocol":1,"surprise":1}')
