"""`python -m benchmarks`: every table that needs no GPU, one after another; exit code 1 when one misses its aim."""

from __future__ import annotations

import subprocess
import sys

TABLES = ("verdicts", "ingest", "runner_cost")


def main() -> int:
    missed = []
    for name in TABLES:
        print(f"\n== python -m benchmarks.{name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode != 0:
            missed.append(name)
    if missed:
        print(f"\nan aim was missed, or the benchmark could not run: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
