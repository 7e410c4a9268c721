"""Every execution starts from the same tree and empty caches, under both ways of restoring."""

import pytest

from gpu_runner.life import Life
from gpu_runner.loop import run_job_in
from gpu_runner.protocol import CacheState
from gpu_runner.restore import RestoreMode, Restorer
from gpu_runner.sandbox import Sandbox
from gpu_runner.slot import Slot
from gpu_runner.tree import tree_hash
from tests.runner.harness import commit, ctest_files, fields

# Fails unless tree, home and temporary folder are as the first execution found them; then spoils all three.
SPOIL = """
cd '{tree}' || exit 1
test "$(cat kept.txt)" = kept && test -e deleted.txt && ! test -e created.txt && test -x tool || exit 1
test -z "$(ls -A "$HOME" "$TMPDIR" "$XDG_CACHE_HOME" | grep -v :)" || exit 1
echo spoiled > kept.txt; rm deleted.txt; echo x > created.txt; chmod 600 tool; mkdir folder; echo x > folder/deep.txt
echo x > "$HOME/a"; echo x > "$TMPDIR/b"; echo x > "$XDG_CACHE_HOME/c"
"""


@pytest.fixture
def spoiled(make_runner, tmp_path):
    files = ctest_files(("spoils", SPOIL.format(tree=tmp_path / "slot" / "tree")))
    files |= {"kept.txt": "kept", "deleted.txt": "x", "tool": "x"}
    return make_runner(files, framework="ctest", build=("chmod 700 tool",))


def run_in_process(job, mode):
    """Run a job with a fixed way of restoring; returns its reports and the way that was used."""
    life = Life()
    messages = []
    try:
        slot = Slot(job.slot_dir)
        try:
            run_job_in(slot, job, life, messages.append, mode)
        finally:
            slot.close()
    finally:
        life.close()
    return [message for message in messages if message.type == "execution"]


@pytest.mark.parametrize("mode", list(RestoreMode))
def test_what_a_test_does_to_tracked_files_does_not_reach_the_next_execution(spoiled, mode):
    slot, life = Slot(spoiled.slot), Life()
    found = Restorer(Sandbox(slot, life)).mode
    life.close()
    slot.close()
    if mode is RestoreMode.OVERLAY and found is not mode:
        pytest.skip("this user may not mount an overlay here")
    first = spoiled.block_job((0, ("spoils",), 1), (0, ("spoils",), 2))
    reports = run_in_process(first, mode) + run_in_process(first, mode)
    assert [report.results[0].outcome.value for report in reports] == ["passed"] * 4
    for report in reports:
        files = fields(report, "files")
        assert files["restore"] == mode
        assert set(files["left_behind"]) == {
            "changed kept.txt", "deleted deleted.txt", "created created.txt", "changed tool",
            "created folder/deep.txt", "created private/home/a", "created private/tmp/b", "created private/cache/c",
        }  # fmt: skip
    assert len({fields(report, "files")["cache_digest"] for report in reports}) == 1


def test_a_test_that_deletes_its_home_is_reported_like_any_other(make_runner):
    runner = make_runner(ctest_files(("wipes", 'rm -r "$HOME" "$TMPDIR" "$XDG_CACHE_HOME"')), framework="ctest")
    said = runner.block((0, ("wipes",), 1), (0, ("wipes",), 2), cache_state=CacheState.WARM)
    assert [report.results[0].outcome.value for report in said.of("execution")] == ["passed", "passed"]


def test_the_build_and_the_tests_see_the_tree_at_one_path(make_runner, tmp_path):
    files = ctest_files(("same_path", 'test "$(cat built.txt)" = "$PWD"'))
    runner = make_runner(files, framework="ctest", build=("pwd > built.txt",))
    assert runner.execute("same_path").outcomes == {"same_path": "passed"}
    assert (tmp_path / "slot" / "snapshots").is_dir()


def test_a_snapshot_is_built_once(make_runner, tmp_path):
    count = tmp_path / "count"
    runner = make_runner(ctest_files(("one", "true")), framework="ctest", build=(f"echo built >> {count}",))
    runner.prepare("one")
    runner.execute("one")
    assert count.read_text() == "built\n"


def test_a_warm_cache_comes_from_one_uncounted_execution_of_the_arm(make_runner):
    script = (
        'echo x >> "$XDG_CACHE_HOME/runs"; echo LIKEWISE_METRIC runs=$(wc -l < "$XDG_CACHE_HOME/runs"); ls "$TMPDIR"'
    )
    runner = make_runner(ctest_files(("one", script)), framework="ctest")
    runner.arm()
    runner.arm()
    said = runner.block((0, ("one",), 1), (0, ("one",), 2), (1, ("one",), 1), cache_state=CacheState.WARM)
    reports = said.of("execution")
    assert [item.phase for item in said.of("progress")].count("warm") == 2
    assert [report.measurements[0].value for report in reports] == [2.0, 2.0, 2.0]
    assert fields(reports[0], "files")["cache_state"] == "warm"
    again = runner.block((0, ("one",), 3), cache_state=CacheState.WARM, number=1)
    assert [item.phase for item in again.of("progress")].count("warm") == 0
    assert again.report.measurements[0].value == 2.0


def test_big_files_are_read_and_their_residency_is_recorded(make_runner):
    files = ctest_files(("one", "true")) | {"models/big.bin": "x" * 100_000, "models/other.txt": "x"}
    runner = make_runner(files, framework="ctest", big_files=("models/*.bin",))
    assert fields(runner.execute("one").report, "files")["big_files_resident"] == {"models/big.bin": 1.0}


def test_git_and_exported_files_agree_also_about_links_and_modes(demo_of_ctest):
    source = demo_of_ctest.source
    (source / "to_folder").symlink_to("tests")
    (source / "to_nowhere").symlink_to("nowhere")
    (source / "tests" / "unit.sh").chmod(0o755)
    plain = tree_hash(source)
    demo_of_ctest.commit = commit(source)
    prepared = demo_of_ctest.prepare("spec_decode_gate").of("prepared")[0]
    assert fields(prepared, "software")["tree_hash"] == plain
