"""How fast reports are read: cases a second of generated files of known content, checked before they are timed.

Run `python -m benchmarks.ingest [CASES]`. Wall and processor time are medians of five; the aim is 100,000 cases a
second on a file of pytest in which one test in fifty fails.
"""

from __future__ import annotations

import gzip
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable

from gpu_runner.protocol import Outcome
from service.ingest import read_report
from service.ingest.report import FileStatus
from service.signature import failure_signature

REPEATS = 5
AIM = 100_000
FAILURE = (
    '<failure message="assert 1.5 &lt; 0.25">def test_kl():\n&gt;   assert kl &lt; limit\nE   assert 1.5 &lt; 0.25\n\n'
    "tests/unit/test_kl.py:6: AssertionError</failure>"
)
SKIP = '<skipped type="pytest.skip" message="no device">tests/unit/test_kl.py:3: no device</skipped>'
OUTPUT = "<system-out>" + "step 1 of 100, loss 0.25\n" * 20 + "LIKEWISE_COUNTER fired=3\n</system-out>"


def pytest_report(cases: int) -> bytes:
    """A report of pytest: of fifty tests one fails and one is skipped."""
    lines = ['<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests">']
    lines.append(f'<testsuite name="pytest" tests="{cases}" timestamp="2026-01-02T03:04:05.678901+00:00">')
    for i in range(cases):
        inside = {7: FAILURE, 8: SKIP}.get(i % 50)
        end = f">{inside}</testcase>" if inside else " />"
        lines.append(f'<testcase classname="tests.unit.test_{i // 50}" name="test_{i % 50}" time="0.00{i % 10}"{end}')
    return "".join([*lines, "</testsuite></testsuites>"]).encode()


def rerun_report(cases: int) -> bytes:
    """The same where each failing test ran three times."""
    return pytest_report(cases).replace(
        b"</failure>", b'</failure><rerunFailure message="b" type="E"/><rerunFailure message="c" type="E"/>'
    )


def output_report(cases: int) -> bytes:
    """A report in which each test printed 500 bytes and a counter."""
    lines = [f'<testsuite name="s" tests="{cases}">']
    lines += [f'<testcase classname="c.T{i // 50}" name="n{i}" time="0.1">{OUTPUT}</testcase>' for i in range(cases)]
    return "".join([*lines, "</testsuite>"]).encode()


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Median wall and processor seconds."""
    walls, processors = [], []
    for _ in range(REPEATS):
        wall, processor = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    return statistics.median(walls), statistics.median(processors)


def main() -> int:
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    failing = sum(i % 50 == 7 for i in range(cases))
    plain = pytest_report(cases)
    files = {
        "pytest": (plain, cases),
        "pytest, gzipped": (gzip.compress(plain, 1), cases),
        "pytest, one byte to repair": (
            plain.replace(b"test_1 ", b"test_1\x01", 1).replace(b'test_1"', b'test_\xff"', 1),
            cases,
        ),
        "three runs of each failure": (rerun_report(cases), cases + 2 * failing),
        "500 bytes of output each": (output_report(cases), cases),
    }
    print(f"{'file':<28} {'MB':>6} {'results':>8} {'wall s':>7} {'cpu s':>7} {'results/s (cpu)':>16}")
    rates = {}
    for name, (data, expected) in files.items():
        report = read_report(name, data)
        outcomes = Counter(case.outcome for case in report.cases)
        if len(report.cases) != expected or report.status is FileStatus.REJECTED or not report.is_complete:
            print(f"{name}: {len(report.cases)} of {expected} results, {report.status}", file=sys.stderr)
            return 1
        if "output" not in name and outcomes[Outcome.FAILED] != expected - cases + failing:
            print(f"{name}: {outcomes}", file=sys.stderr)
            return 1
        del report
        wall, processor = timed(lambda data=data, name=name: read_report(name, data))
        rates[name] = expected / processor
        print(f"{name:<28} {len(data) / 1e6:6.1f} {expected:8} {wall:7.2f} {processor:7.2f} {rates[name]:16,.0f}")
    messages = [f"assert {i}.5 < 0.25\n +  where {i}.5 = kl(tensor([{i}., 2.]), 'a')" for i in range(2000)]
    wall, processor = timed(lambda: [failure_signature(Outcome.FAILED, None, message) for message in messages])
    print(f"signatures: {len(messages) / processor:,.0f} a second (cpu)")
    reached = rates["pytest"] >= AIM
    print(f"aim {AIM:,} results a second of processor time: {'reached' if reached else 'missed'}")
    return 0 if reached else 1


if __name__ == "__main__":
    raise SystemExit(main())
