"""The whole flow with real processes: undisturbed, killed, on PostgreSQL and a separate server, detached.

Every execution's chance comes from the experiment's seed, so each of them must end in the same finding.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flow.stack import (
    ROOT,
    Up,
    add_demo,
    belonging_to,
    enqueue,
    environment,
    finding,
    likewise,
    seeds_alive,
    until,
    up,
    view,
)

# The control fails in every one of the first blocks of this seed, and 4 of 4 against 0 of 4 crosses the boundary.
EXPECTED = {
    "verdict": "IMPLICATED",
    "stop_index": 3,
    "blocks_counted": 4,
    "control": {"match": 4, "clean": 0, "other": 0},
    "treated": {"match": 0, "clean": 4, "other": 0},
}


def assert_expected(found: dict) -> None:
    assert {key: found[key] for key in EXPECTED} == EXPECTED
    assert found["sentence"].startswith("warm_plan_cache makes spec_decode_gate fail: 4/4 in the control, 0/4 without")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path / "home")


def concluded(env: dict[str, str], number: int) -> bool:
    return view(env, number)["finding"] is not None


def running_test(env: dict[str, str], number: int, index: int) -> dict | None:
    """Returns what block `index` does once one of its executions has begun."""
    for item in view(env, number)["running"]:
        if item["index"] == index and item["phase"] == "execute":
            return item
    return None


def test_an_undisturbed_experiment_ends_implicated_and_replays_from_its_bundle(env, tmp_path):
    with up(env):
        add_demo(env)
        number = enqueue(env)
        until(lambda: concluded(env, number), "the verdict")
        assert_expected(finding(env, number))
        shown = likewise(env, "show", str(number))
        assert "IMPLICATED" in shown and "likewise enqueue ab" in shown
        bundle = tmp_path / "bundle.zip"
        likewise(env, "bundle", str(number), "--output", str(bundle))
        fields = likewise(env, "context", "diff", str(number))
        assert "tests" in fields
    nowhere = environment(tmp_path / "elsewhere")
    assert "the same finding" in likewise(nowhere, "replay", str(bundle))
    assert not belonging_to(Path(env["LIKEWISE_HOME"])), "stopping leaves no process"


def test_killing_worker_broker_and_everything_changes_no_result(env):
    home = Path(env["LIKEWISE_HOME"])
    stack = Up(env)
    stack.start()
    try:
        add_demo(env)
        number = enqueue(env)
        until(lambda: running_test(env, number, 0), "block 0")
        os.kill(stack.child("slot0"), signal.SIGKILL)
        alive: list[set[bytes]] = []
        until(
            lambda: alive.append(seeds_alive(home)) or running_test(env, number, 1), "block 1 after the worker's death"
        )
        assert all(len(seeds) <= 1 for seeds in alive), "the old block's processes lived beside the new one's"
        os.kill(stack.child("broker.sock"), signal.SIGKILL)
        until(lambda: running_test(env, number, 2), "block 2 after the broker's death")
        stack.kill()
        until(lambda: not belonging_to(home), "the end of everything that belonged to the killed `up`")
        stack.start()
        until(lambda: concluded(env, number), "the verdict")
        assert_expected(finding(env, number))
        seen = view(env, number)
        counted = [a for a in seen["attempts"] if a["standing"] == "counted"]
        assert [a["index"] for a in counted] == [0, 1, 2, 3]
        assert {a["index"] for a in seen["attempts"] if a["standing"] == "void"} >= {0, 2}
        assert all(len(a["cells"]) == 2 for a in counted)
    finally:
        stack.stop()
    until(lambda: not belonging_to(home), "the end of everything")


def test_a_detached_run_with_a_bare_interpreter_gives_the_same_finding(env, tmp_path):
    Path(env["LIKEWISE_HOME"]).mkdir()
    add_demo(env)
    number = enqueue(env, "--detached", "--blocks", "30")
    plan = tmp_path / "plan.jsonl"
    plan.write_text(likewise(env, "plan", "export", str(number), "--blocks", "5"))
    source = tmp_path / "tree"
    shutil.copytree(tmp_path / "engine", source, ignore=shutil.ignore_patterns(".git"))
    runner = tmp_path / "runner"
    shutil.copytree(ROOT / "gpu_runner", runner / "gpu_runner", ignore=shutil.ignore_patterns("gdn", "__pycache__"))
    evidence = tmp_path / "evidence.jsonl"
    ctest = shutil.which("ctest") or str(Path(sys.executable).with_name("ctest"))
    bare = {"PATH": f"{Path(ctest).parent}:/usr/bin:/bin"}
    command = [sys.executable, "-I", "-c", _BARE.format(root=str(runner)), "batch", "--source", str(source)]
    with plan.open() as given, evidence.open("w") as out:
        subprocess.run([*command, "--slot", str(tmp_path / "slot")], stdin=given, stdout=out, env=bare, check=True)
    answer = likewise(env, "evidence", "import", str(evidence))
    assert "IMPLICATED" in answer
    assert_expected(finding(env, number))
    again = subprocess.run(
        [sys.executable, "-c", "import sys; from service.cli import main; sys.exit(main())", "evidence", "import", str(evidence)],
        env=env, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert again.returncode == 1
    assert "imported already" in again.stderr


_BARE = """
import runpy, sys
sys.path.insert(0, {root!r})
sys.argv[0] = "gpu_runner"
runpy.run_module("gpu_runner", run_name="__main__", alter_sys=True)
"""


def test_postgresql_and_a_separate_server_give_the_same_finding(env, tmp_path, postgres, valkey):
    env |= {"LIKEWISE_DATABASE_URL": postgres, "LIKEWISE_BROKER_URL": valkey}
    with up(env):
        add_demo(env)
        number = enqueue(env)
        until(lambda: concluded(env, number), "the verdict")
        assert_expected(finding(env, number))
