"""The KL flows and the deterministic matrix in bfloat16 on one device: a table, and JSON for the record.

    python benchmarks/gdn_kl.py --device cuda --runs 20 --out gdn_kl.json

Correctness first: in deterministic mode a cached answer must equal a cold one bit for bit, in all four cells, and the
fault `decode_advances_checkpoint` must break that; otherwise the script ends with status 1 and times nothing. Needs
torch, triton and safetensors; no network.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from gpu_runner.gdn.cache.tracking import Strategy
from gpu_runner.gdn.counters import COUNTERS, Counters
from gpu_runner.gdn.faults import VARIABLE
from gpu_runner.gdn.suite import kl_flows
from gpu_runner.gdn.suite.kl_cases import KL_CASES, mean_divergence, run_case

RELEASE = "slot_release_on_reject"


def tokens(length: int, seed: int) -> list[int]:
    return torch.randint(0, 64, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def cell(model, *, deterministic: bool, overlap: bool, is_lazy: bool, fault: str) -> dict:
    """The two requests of sgl-project/sglang#47213 in one cell of the matrix."""
    os.environ[VARIABLE] = fault
    strategy = Strategy.EXTRA_BUFFER_LAZY if is_lazy else Strategy.EXTRA_BUFFER
    engine = kl_flows.tiny_engine(
        model, rows=1024, slots=16, deterministic=deterministic, overlap=overlap, strategy=strategy, counters=Counters()
    )
    prompt = tokens(100, 3)
    first = engine.generate([prompt], 40)[0]
    second = prompt + first.token_ids[:36]
    warm = engine.generate([second], 16)[0]
    engine.flush_cache()
    cold = engine.generate([second], 16)[0]
    os.environ[VARIABLE] = ""
    return {
        "deterministic": deterministic,
        "overlap": overlap,
        "lazy": is_lazy,
        "fault": fault,
        "cached_tokens": warm.cached_tokens,
        "tokens_equal": warm.token_ids == cold.token_ids,
        "bitwise_equal": warm.logprobs == cold.logprobs,
        "max_difference": max(abs(a - b) for a, b in zip(warm.logprobs, cold.logprobs, strict=True)),
    }


def matrix(model) -> list[dict]:
    cells = [
        cell(model, deterministic=d, overlap=o, is_lazy=z, fault="")
        for d, o, z in itertools.product([False, True], repeat=3)
    ]
    return cells + [
        cell(model, deterministic=True, overlap=o, is_lazy=z, fault="decode_advances_checkpoint")
        for o, z in itertools.product([False, True], repeat=2)
    ]


def is_sound(cells: list[dict]) -> bool:
    promised = [c["bitwise_equal"] for c in cells if c["deterministic"] and not c["fault"]]
    broken = [not c["bitwise_equal"] for c in cells if c["fault"]]
    return all(promised) and all(broken) and all(c["cached_tokens"] > 0 for c in cells)


def kl_row(name: str, fault: str, runs: int, device: str) -> dict:
    """Mean divergences of `runs` executions, and what the cache did in them."""
    os.environ[VARIABLE] = fault
    COUNTERS.reset()
    start = time.perf_counter()
    samples = [run_case(name, f"benchmark-{run}", device) for run in range(runs)]
    seconds = time.perf_counter() - start
    counted = COUNTERS.flat((), ())
    os.environ[VARIABLE] = ""
    every = sorted(sample.divergence for run in samples for sample in run)
    return {
        "case": name,
        "fault": fault,
        "runs": runs,
        "means": [mean_divergence(run) for run in samples],
        "samples": [[sample.divergence for sample in run] for run in samples],
        "median_sample": statistics.median(every),
        "worst_sample": every[-1],
        "seconds_per_run": seconds / runs,
        "rejections": counted["gdn.cache.rejections"],
        "rematch_depth_changed": counted["gdn.cache.rematch_depth_changed"],
    }


def pass_rates(rows: list[dict]) -> dict:
    """The pressure case at the 90 % quantile of its own first half of fault-off runs, judged on the other half."""
    off, on = (
        next(r["means"] for r in rows if r["case"] == "admission_pressure" and r["fault"] == f) for f in ("", RELEASE)
    )
    half = len(off) // 2
    threshold = sorted(off[:half])[max(round(0.9 * half) - 1, 0)]
    rate = lambda means: sum(mean <= threshold for mean in means) / len(means)  # noqa: E731
    return {"threshold": threshold, "calibrated_on": half, "pass_off": rate(off[half:]), "pass_on": rate(on)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--runs", type=int, default=20, help="executions of each KL case, at least 2")
    parser.add_argument("--out", type=Path, required=True, help="where the JSON goes")
    chosen = parser.parse_args()
    if chosen.device == "cpu":
        torch.set_num_threads(1)
    os.environ[VARIABLE] = ""
    model = kl_flows.tiny_model(device=chosen.device, initializer_range=0.2)
    with kl_flows.without_onednn():
        cells = matrix(model)
    print("deterministic overlap lazy fault                        cached bitwise max difference")
    for c in cells:
        print(
            f"{c['deterministic']!s:13} {c['overlap']!s:7} {c['lazy']!s:5} {c['fault'] or '-':28} "
            f"{c['cached_tokens']:5} {c['bitwise_equal']!s:7} {c['max_difference']:.2e}"
        )
    result = {
        "device": torch.cuda.get_device_name() if chosen.device.startswith("cuda") else platform.processor(),
        "torch": torch.__version__,
        "dtype": "bfloat16",
        "matrix": cells,
        "matrix_sound": is_sound(cells),
    }
    if result["matrix_sound"]:
        rows = [kl_row(name, "", chosen.runs, chosen.device) for name in KL_CASES]
        rows.append(kl_row("admission_pressure", RELEASE, chosen.runs, chosen.device))
        result |= {"kl": rows, "admission_pressure": pass_rates(rows)}
        print(
            "\ncase                fault                    mean of means median    worst     rejections changed s/run"
        )
        for r in rows:
            print(
                f"{r['case']:19} {r['fault'] or '-':24} {statistics.fmean(r['means']):.2e}      "
                f"{r['median_sample']:.2e} {r['worst_sample']:.2e} {r['rejections']:10} "
                f"{r['rematch_depth_changed']:7} {r['seconds_per_run']:.2f}"
            )
        print("admission pressure:", json.dumps(result["admission_pressure"]))
    chosen.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if result["matrix_sound"] else 1


if __name__ == "__main__":
    sys.exit(main())
