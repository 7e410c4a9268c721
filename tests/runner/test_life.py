"""Nothing outlives its job: whoever dies, whenever, no process is left and the next run starts clean."""

import os
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_runner.linux import process_ids
from gpu_runner.protocol import write_line
from tests.runner.harness import ROOT, command_line, ctest_files, fields, is_alive, read_numbers

# A test that starts a child in its session, one in a session of its own, and one whose parents are gone, then hangs.
HANG = """
echo $$ >> {note}
sleep 300 & echo $! >> {note}
setsid sleep 300 & echo $! >> {note}
(setsid sh -c 'sleep 300 & echo $! >> {note}' &)
sleep 300
"""
PROCESSES = 4
PATIENCE_S = 60.0


def wait_until(is_so):
    """Poll; there is no event for what other processes do. Fails after a minute."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < give_up_at, "it did not happen"
        time.sleep(0.01)


@pytest.fixture
def note(tmp_path):
    return tmp_path / "note"


@pytest.fixture
def hanging(make_runner, note):
    """A runner whose one test hangs, with its tree prepared."""
    runner = make_runner(ctest_files(("hangs", HANG.format(note=note)), ("passes", "true")), framework="ctest")
    assert runner.prepare("hangs").is_done
    return runner


@contextmanager
def started(runner, note, **options):
    """Start the hanging block over a pipe; gives the process once all of the test's processes run."""
    job = write_line(runner.block_job((0, ("hangs", "passes"), 1)))
    with subprocess.Popen(
        command_line("run"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, **options
    ) as process:
        try:
            process.stdin.write(job)
            process.stdin.flush()
            wait_until(lambda: note.exists() and len(read_numbers(note)) == PROCESSES)
            assert all(is_alive(pid) for pid in read_numbers(note))
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def supervisors_of(runner):
    return [pid for pid in process_ids() if _slot_mark(pid, runner)]


def _slot_mark(pid, runner):
    try:
        return f"LIKEWISE_SLOT={runner.slot}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def assert_next_run_is_clean(runner, note):
    said = runner.execute("passes")
    assert said.outcomes == {"passes": "passed"}
    assert not any(is_alive(pid) for pid in read_numbers(note))
    assert not supervisors_of(runner)


def test_closing_standard_input_ends_everything_and_says_so(hanging, note):
    with started(hanging, note) as process:
        process.stdin.close()
        lines = process.stdout.read().splitlines()
        assert process.wait() == 1
        assert '"code":"input_closed"' in lines[-1]
        assert not any('"type":"execution"' in line for line in lines)
        assert not any(is_alive(pid) for pid in read_numbers(note))
    assert_next_run_is_clean(hanging, note)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything_and_says_so(hanging, note, number):
    with started(hanging, note) as process:
        process.send_signal(number)
        lines = process.stdout.read().splitlines()
        assert process.wait() == 1
        assert '"code":"cancelled"' in lines[-1]
        assert not any(is_alive(pid) for pid in read_numbers(note))


def test_kill_of_the_runner_leaves_no_process_and_the_next_run_starts_clean(hanging, note):
    with started(hanging, note) as process:
        process.kill()
        process.wait()
        # The next runner waits for the old supervisor, which holds the lock until its tree is gone.
        assert_next_run_is_clean(hanging, note)


def test_kill_of_runner_and_supervisor_is_cleaned_up_by_the_next_run(hanging, note):
    with started(hanging, note) as process:
        supervisor = next(
            int(child) for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        )
        os.kill(process.pid, signal.SIGSTOP)
        os.kill(supervisor, signal.SIGKILL)
        process.kill()
        process.wait()
        wait_until(lambda: not is_alive(supervisor))
        # Those whose parents died with them are still there: nothing but the next runner can end them.
        assert any(is_alive(pid) for pid in read_numbers(note))
        assert_next_run_is_clean(hanging, note)


def test_a_busy_slot_is_refused_while_its_runner_lives(hanging, note):
    with started(hanging, note) as process:
        said = hanging.execute("passes")
        assert (said.exit_code, said.failure.code) == (1, "slot_busy")
        assert str(process.pid) in said.failure.message
        assert all(is_alive(pid) for pid in read_numbers(note))


def test_the_memory_guard_kills_the_tree_and_says_so(make_runner):
    files = {
        "test_it.py": "def test_first(): pass\ndef test_big():\n    big = bytearray(400_000_000)\n"
        "    import time; time.sleep(60)\ndef test_last(): pass\n"
    }
    runner = make_runner(files, framework="pytest", memory_limit_bytes=250_000_000)
    said = runner.execute("test_it.py::test_first", "test_it.py::test_big", "test_it.py::test_last")
    assert list(said.outcomes.values()) == ["passed", "killed", "not_run"]
    assert said.report.status == "complete"
    assert fields(said.report, "pressure")["peak_bytes"] > 250_000_000


def test_a_job_through_a_pipe_that_closes_at_once_is_refused(hanging):
    job = write_line(hanging.block_job((0, ("passes",), 1)))
    done = subprocess.run(command_line("run"), input=job, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert '"code":"input_closed"' in done.stdout.splitlines()[-1]


def test_no_descriptor_of_the_runner_reaches_the_tests(make_runner):
    runner = make_runner(ctest_files(("lists", "ls -l /proc/self/fd")), framework="ctest")
    output = runner.execute("lists").report.results[0].output
    assert "lock" not in output
    assert "job.json" not in output


def test_a_reader_that_goes_away_ends_the_job(hanging, note):
    with started(hanging, note) as process:
        process.stdout.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 1
    assert_next_run_is_clean(hanging, note)
