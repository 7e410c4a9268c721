"""The KL tests by name: what each runs, and the threshold that its mean divergence must keep.

A threshold is fixed beforehand from runs without faults and kept with the command that made it, in
`kl_thresholds.json`: `python -m gpu_runner.gdn.suite.kl_cases calibrate`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from gpu_runner.gdn.engine import Engine
from gpu_runner.gdn.faults import active
from gpu_runner.gdn.suite import kl_flows
from gpu_runner.gdn.suite.kl_flows import Sample

THRESHOLDS = Path(__file__).with_name("kl_thresholds.json")
MARGIN = 2
METRIC = "kl_div"

# Rows for one conversation's answer and a short follow-up: a follow-up that crosses a checkpoint has to wait.
PRESSURE_ROWS = 200


@dataclass(frozen=True, slots=True)
class KlCase:
    """A flow with its sizes; `rows` are those of the engine's KV pool. How it is calibrated: see `calibrate`."""

    run: Callable[[Engine, random.Random], list[Sample]]
    rows: int = 4096
    has_draft: bool = False
    calibration_runs: int = 20
    quantile: float | None = None


KL_CASES: dict[str, KlCase] = {
    "prefill_cache_hit": KlCase(
        lambda engine, rng: kl_flows.prefill_cache_hit(engine, rng, kl_flows.prompt_lengths(rng, 6, 160), 8)
    ),
    "decode_cache_hit": KlCase(
        lambda engine, rng: kl_flows.decode_cache_hit(engine, rng, kl_flows.prompt_lengths(rng, 4, 100), 8)
    ),
    "multi_turn": KlCase(lambda engine, rng: kl_flows.multi_turn(engine, rng, kl_flows.prompt_lengths(rng, 3, 100), 8)),
    "tree_speculation": KlCase(
        lambda engine, rng: kl_flows.tree_speculation(engine, rng, kl_flows.prompt_lengths(rng, 3, 64), 16),
        has_draft=True,
    ),
    "admission_pressure": KlCase(
        lambda engine, rng: kl_flows.interrupted_turns(engine, kl_flows.draw_interruptions(rng, 6)),
        rows=PRESSURE_ROWS,
        calibration_runs=100,
        quantile=0.9,
    ),
}


@dataclass(frozen=True, slots=True)
class Threshold:
    """The most that the mean divergence of a case may be, and the runs without faults that it was taken from."""

    mean: float
    runs: int
    rule: str


def run_case(name: str, seed: str, device: torch.device | str = "cpu") -> list[Sample]:
    """The samples of one execution of the KL case `name`; all chance comes from `seed`."""
    found = KL_CASES[name]
    with kl_flows.without_onednn():
        engine = kl_flows.tiny_engine(kl_flows.tiny_model(device=device, has_draft=found.has_draft), rows=found.rows)
        return found.run(engine, random.Random(f"{seed}/{name}"))  # noqa: S311  # not a secret


def mean_divergence(samples: Sequence[Sample]) -> float:
    """The arithmetic mean over samples, the statistic of SGLang's KL tests."""
    return statistics.fmean(sample.divergence for sample in samples)


def thresholds() -> dict[str, Threshold]:
    """The thresholds fixed beforehand, by case."""
    kept = json.loads(THRESHOLDS.read_text())
    return {name: Threshold(**value) for name, value in kept["cases"].items()}


def report(samples: Sequence[Sample], test: str) -> None:
    """Appends every sample's divergence, as measurement `kl_div` of `test`, to $LIKEWISE_EVENTS where it is set."""
    target = os.environ.get("LIKEWISE_EVENTS")
    if target:
        lines = [
            json.dumps({"metric": METRIC, "value": sample.divergence, "sample": index, "test": test}) + "\n"
            for index, sample in enumerate(samples)
        ]
        with Path(target).open("a", encoding="utf-8") as events:
            events.writelines(lines)


def calibrate(name: str) -> Threshold:
    """The threshold of a case, from executions without faults; ValueError while a fault is on.

    A case with a `quantile` keeps the smallest mean that at least this share of its runs stays at or below: it is the
    victim of experiments and must fail now and then. The others keep `MARGIN` times the largest mean.
    """
    if active():
        raise ValueError("a threshold is calibrated without faults; unset LIKEWISE_GDN_FAULT")
    found = KL_CASES[name]
    means = sorted(mean_divergence(run_case(name, f"calibration-{run}")) for run in range(found.calibration_runs))
    if found.quantile is None:
        return Threshold(MARGIN * means[-1], len(means), f"{MARGIN} times the largest mean")
    return Threshold(means[math.ceil(found.quantile * len(means)) - 1], len(means), f"{found.quantile} quantile")


def main(arguments: Sequence[str] | None = None) -> None:
    """Calibrates every case, or those named, and rewrites `kl_thresholds.json`."""
    parser = argparse.ArgumentParser(prog="python -m gpu_runner.gdn.suite.kl_cases")
    parser.add_argument("command", choices=["calibrate"])
    parser.add_argument("cases", nargs="*", default=list(KL_CASES), help="cases, by default all")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for name in chosen.cases:
        threshold = calibrate(name)
        cases = json.loads(THRESHOLDS.read_text())["cases"] if THRESHOLDS.is_file() else {}
        made = {
            "command": "python -m gpu_runner.gdn.suite.kl_cases calibrate",
            "torch": torch.__version__,
            "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, one thread, bfloat16",
        }
        kept = {"made_by": made, "cases": cases | {name: asdict(threshold)}}
        THRESHOLDS.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
