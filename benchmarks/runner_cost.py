"""What the runner adds to a suite: `python -m benchmarks.runner_cost`, 200 and 2,000 trivial tests, ctest and pytest.

Each pair runs the bare framework and then the whole command `python -m gpu_runner run` for one execution of the same
tests, on a tree that is already prepared. The gate comes first: every test passes, in the order that was asked for. Prints
the median difference over the pairs with its range, beside the aim of 1.5 s and 3 ms a test; exits 1 above it.
`--pairs N` (default 10).
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpu_runner.protocol import ArmJob, BlockJob, ExecutionJob, SuiteDefinition, write_line
from gpu_runner.surroundings import search_path
from gpu_runner.tree import tree_hash

ROOT = Path(__file__).parents[1]
AIM_EXECUTION_S = 1.5
AIM_TEST_S = 0.003


def suite_of(framework: str, number: int, source: Path) -> tuple[tuple[str, ...], list[str]]:
    """Return the tests of a trivial suite written into `source`, and the bare command that runs it."""
    source.mkdir(parents=True)
    if framework == "ctest":
        lines = [f"add_test(t{index} true)\n" for index in range(number)]
        (source / "CTestTestfile.cmake").write_text("".join(lines))
        program = shutil.which("ctest", path=search_path(None)) or "ctest"
        return tuple(f"t{index}" for index in range(number)), [program, "-j", "1"]
    text = f"import pytest\n\n\n@pytest.mark.parametrize('i', range({number}))\ndef test_it(i):\n    pass\n"
    (source / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    return tuple(f"test_it.py::test_it[{index}]" for index in range(number)), command


def run_bare(command: list[str], folder: Path) -> float:
    """Return the seconds of the bare framework."""
    started = time.perf_counter()
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def run_runner(job: Path, tests: tuple[str, ...]) -> float:
    """Return the seconds of the runner's whole command; SystemExit when a test did not pass in its place."""
    started = time.perf_counter()
    with job.open() as file:
        command = [sys.executable, "-m", "gpu_runner", "run"]
        done = subprocess.run(command, stdin=file, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True)
    seconds = time.perf_counter() - started
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    results = next(message for message in messages if message["type"] == "execution")["results"]
    if tuple(result["test"] for result in results if result["outcome"] == "passed") != tests:
        raise SystemExit("the gate is red: not every test passed in its place")
    return seconds


def measure(framework: str, number: int, pairs: int, folder: Path) -> bool:
    """Print one row and return whether the aim is kept."""
    source = folder / "source"
    tests, command = suite_of(framework, number, source)
    bare_folder = folder / "bare"
    shutil.copytree(source, bare_folder)
    arm = ArmJob(0, "control", tree_hash(source))
    suite = SuiteDefinition("trivial", framework)
    execution = ExecutionJob(0, tests, 1)
    block = BlockJob(str(source), str(folder / "slot"), suite, (arm,), tests[-1], "benchmark", 0, 0, (execution,))
    job = folder / "job.json"
    job.write_text(write_line(block))
    run_runner(job, tests)
    run_bare(command, bare_folder)
    bare, added = [], []
    for _ in range(pairs):
        bare.append(run_bare(command, bare_folder))
        added.append(run_runner(job, tests) - bare[-1])
    aim = AIM_EXECUTION_S + number * AIM_TEST_S
    median = statistics.median(added)
    print(
        f"{framework:8}{number:7}{statistics.median(bare):10.2f}{median:10.2f}"
        f"   ({min(added):.2f}, {max(added):.2f}){aim:10.2f}  {'kept' if median <= aim else 'MISSED'}"
    )
    return median <= aim


def main() -> int:
    """Print the table; 1 when an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10, help="pairs of runs for each row")
    pairs = parser.parse_args().pairs
    print(f"seconds, medians of {pairs} pairs")
    print(f"{'':8}{'tests':>7}{'bare':>10}{'added':>10}   {'(range)':14}{'aim':>8}")
    is_kept = True
    for framework in ("ctest", "pytest"):
        for number in (200, 2000):
            with tempfile.TemporaryDirectory(prefix="likewise-benchmark-") as folder:
                is_kept = measure(framework, number, pairs, Path(folder)) and is_kept
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
