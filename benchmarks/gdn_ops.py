"""The GDN operators on one GPU: right first, then how fast.

    python -m benchmarks.gdn_ops --json gdn_ops.json           # about two minutes on an H200
    python -m benchmarks.gdn_ops --json gdn_ops.json --quick   # correctness and a few sizes

Heads of Qwen3-Next-80B and Qwen3.5/3.6-35B (Hk 16, Hv 32, D 128, bfloat16, float32 state). An operator whose result is
wrong, or whose bits move, is not timed. Times are medians of CUDA graphs over several layers, each with states of its
own, so that the L2 cache does not answer for memory; n and the quartiles stand beside them. GB/s counts each tensor
once, read or written. Exit 0 right, 1 wrong, 3 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from gpu_runner.gdn.counters import Counters
from gpu_runner.gdn.ops import calls
from gpu_runner.gdn.ops.aot import HeadShape
from gpu_runner.gdn.ops.check import LENGTHS, Check, Example, correctness, example, report, unmoved_bits
from gpu_runner.gdn.ops.scratch import ScratchPools
from gpu_runner.gdn.registry import OPERATORS, OpCtx, Realization

SHAPE = HeadShape()
PREFILLS = {"8x1024": (1024,) * 8, "8x4096": (4096,) * 8, "1x32768": (32768,)}
DECODES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DRAFTS = {"8x4 drafts": (4,) * 8, "64x4 drafts": (4,) * 64}
WORKING_SET_BYTES = 256 << 20
"""More than any L2: the layers of one graph together touch at least this much."""
MOST_LAYERS = 36
REPLAYS = 15
BUDGET_S = 165


@dataclass(frozen=True, slots=True)
class Timing:
    """One operator at one size: microseconds per call and layer over n replays, and what memory traffic that is."""

    operator: str
    size: str
    layers: int
    n: int
    median_us: float
    q1_us: float
    q3_us: float
    gb_per_s: float


@dataclass(frozen=True, slots=True)
class Workload:
    """What one layer does: `run(layer)` launches it, `size_bytes` counts the tensors that one call reads or writes."""

    operator: str
    size: str
    size_bytes: int
    most_layers: int
    run: Callable[[int], Any]


def size_bytes(*tensors: torch.Tensor) -> int:
    """Bytes of all tensors together."""
    return sum(t.numel() * t.element_size() for t in tensors)


def graph_us(workload: Workload) -> Timing:
    """The median time of one call, from a CUDA graph that holds one call per layer."""
    layers = max(1, min(workload.most_layers, -(-WORKING_SET_BYTES // max(1, workload.size_bytes))))
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for layer in range(layers):
            workload.run(layer)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for layer in range(layers):
            workload.run(layer)
    times = []
    for _ in range(REPLAYS + 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / layers)
    q1, median, q3 = statistics.quantiles(times[3:], n=4)
    return Timing(
        workload.operator, workload.size, layers, REPLAYS, round(median, 3), round(q1, 3), round(q3, 3),
        round(workload.size_bytes / median / 1e3, 1),
    )  # fmt: skip


def prefill_workloads(size: str, e: Example, ctx: OpCtx) -> Iterator[Workload]:
    """Every stage of a prefill on its own, then the chain of all."""
    pool = e.pool
    state = (e.slots, e.kept)
    # The state of each sequence once in and once out: the pool has a row that nobody uses.
    state_bytes = 2 * size_bytes(pool[1:])
    y = calls.conv1d(e.x, e.conv_weight, e.conv_pool, *state, e.plan, ctx=ctx)
    g, beta = calls.gating(e.a, e.b, e.A_log, e.dt_bias, ctx=ctx)
    q, k = calls.l2norm(e.q, ctx=ctx), calls.l2norm(e.k, ctx=ctx)
    G = calls.cumsum(g, e.plan, ctx=ctx)
    A = calls.kkt_solve(k, beta, G, e.plan, ctx=ctx)
    w, u = calls.wu(k, e.v, beta, G, A, e.plan, ctx=ctx)
    states = calls.delta_h(k, w, u, G, pool, *state, e.plan, ctx=ctx)
    h, v_new = states.h, states.v_new
    o = calls.chunk_o(q, k, v_new, h, G, e.plan, ctx=ctx)

    def chain(_: int) -> None:
        g, beta = calls.gating(e.a, e.b, e.A_log, e.dt_bias, ctx=ctx)
        G = calls.cumsum(g, e.plan, ctx=ctx)
        A = calls.kkt_solve(k, beta, G, e.plan, ctx=ctx)
        w, u = calls.wu(k, e.v, beta, G, A, e.plan, ctx=ctx)
        states = calls.delta_h(k, w, u, G, pool, *state, e.plan, ctx=ctx)
        calls.chunk_o(q, k, states.v_new, states.h, G, e.plan, ctx=ctx)

    def workload(operator: str, moved: int, run: Callable[[int], Any]) -> Workload:
        return Workload(operator, size, moved, 4, run)

    yield workload(
        "gating", size_bytes(e.a, e.b, g, beta), lambda _: calls.gating(e.a, e.b, e.A_log, e.dt_bias, ctx=ctx)
    )
    yield workload(
        "conv1d",
        size_bytes(e.x, y),
        lambda _: calls.conv1d(e.x, e.conv_weight, e.conv_pool, *state, e.plan, ctx=ctx),
    )
    yield workload("l2norm", size_bytes(e.q, q), lambda _: calls.l2norm(e.q, ctx=ctx))
    yield workload("cumsum", size_bytes(g, G), lambda _: calls.cumsum(g, e.plan, ctx=ctx))
    yield workload("kkt_solve", size_bytes(k, beta, G, A), lambda _: calls.kkt_solve(k, beta, G, e.plan, ctx=ctx))
    yield workload("wu", size_bytes(k, e.v, beta, G, A, w, u), lambda _: calls.wu(k, e.v, beta, G, A, e.plan, ctx=ctx))
    yield workload(
        "delta_h",
        size_bytes(k, w, u, G, h, v_new) + state_bytes,
        lambda _: calls.delta_h(k, w, u, G, pool, *state, e.plan, ctx=ctx),
    )
    yield workload(
        "chunk_o", size_bytes(q, k, v_new, h, G, o), lambda _: calls.chunk_o(q, k, v_new, h, G, e.plan, ctx=ctx)
    )
    yield workload("rmsnorm_gated", size_bytes(o, e.z, o), lambda _: calls.rmsnorm_gated(o, e.z, e.norm, ctx=ctx))
    yield workload("gates to output", size_bytes(e.a, e.b, q, k, e.v, o) + state_bytes, chain)


def decode_workloads(batch: int, e: Example, ctx: OpCtx) -> Iterator[Workload]:
    """One token of each sequence: the update, its convolution, its norm; states rotate over layers."""
    state_bytes = 2 * size_bytes(e.pool[1:])
    layers = min(MOST_LAYERS, -(-WORKING_SET_BYTES // state_bytes) + 1)
    pools = e.pool[None].repeat(layers, 1, 1, 1, 1)
    conv_pools = e.conv_pool[None].repeat(MOST_LAYERS, 1, 1, 1)
    o = torch.empty_like(e.v, memory_format=torch.contiguous_format)
    gates = (e.a, e.b, e.A_log, e.dt_bias)
    state = (e.slots, e.kept)
    yield Workload(
        "packed_decode",
        f"B {batch}",
        state_bytes + size_bytes(e.x, e.a, e.b, o),
        layers,
        lambda layer: calls.packed_decode(e.x, *gates, pools[layer], *state, ctx=ctx),
    )
    yield Workload(
        "conv1d update",
        f"B {batch}",
        2 * size_bytes(e.conv_pool[1:], e.x) + size_bytes(e.conv_weight),
        MOST_LAYERS,
        lambda layer: calls.conv1d_update(e.x, e.conv_weight, conv_pools[layer], *state, ctx=ctx),
    )
    yield Workload(
        "rmsnorm_gated",
        f"B {batch}",
        size_bytes(o, e.z, o),
        MOST_LAYERS,
        lambda _: calls.rmsnorm_gated(o, e.z, e.norm, ctx=ctx),
    )


def verify_workloads(size: str, e: Example, ctx: OpCtx) -> Iterator[Workload]:
    """A chain of four drafts per sequence."""
    parents = torch.tensor([-1, 0, 1, 2] * e.plan.sequences, device=e.q.device)
    snapshots = e.plan.tokens * size_bytes(e.pool[:1])
    yield Workload(
        "verify_decode",
        size,
        size_bytes(e.pool[1:], e.x, e.v) + 2 * snapshots,
        4,
        lambda _: calls.verify_decode(
            e.x, e.a, e.b, e.A_log, e.dt_bias, e.pool, e.slots, e.kept, parents, e.plan, ctx=ctx
        ),
    )


def workloads(device: torch.device, *, quick: bool) -> Iterator[Workload]:
    """All of them, largest inputs last; each size frees its inputs before the next one."""
    ctx = OpCtx(
        overrides=dict.fromkeys(OPERATORS, Realization.TRITON),
        scratch=ScratchPools(Counters()).of_stream(device, 0),
        counters=Counters(),
    )
    for batch in DECODES[:1] + DECODES[-3:-2] if quick else DECODES:
        yield from decode_workloads(batch, example((1,) * batch, SHAPE, torch.bfloat16, device), ctx)
    for size, lengths in DRAFTS.items():
        yield from verify_workloads(size, example(lengths, SHAPE, torch.bfloat16, device), ctx)
    for size, lengths in PREFILLS.items():
        if not quick or size == "8x1024":
            yield from prefill_workloads(size, example(lengths, SHAPE, torch.bfloat16, device), ctx)


def wrong_operators(checks: list[Check]) -> set[str]:
    """Operators that may not be timed; a wrong chain of stages condemns its stages."""
    wrong = {check.operator for check in checks if not check.is_right}
    if "prefill" in wrong:
        wrong |= {"kkt_solve", "wu", "delta_h", "chunk_o", "gates to output"}
    return wrong


def environment() -> dict[str, str]:
    """What the figures belong to."""
    import triton

    return {
        "device": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "triton": triton.__version__,
        "shape": str(asdict(SHAPE)),
    }


def main(arguments: list[str] | None = None) -> int:
    """0 when everything is right, 1 when something is wrong, 3 without a GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("this benchmark needs a GPU; `python -m gpu_runner.gdn.ops.check` checks the interpreter")
        return 3
    begin = time.monotonic()
    device = torch.device("cuda", torch.cuda.current_device())
    result: dict[str, Any] = {"environment": environment(), "checks": [], "timings": [], "skipped": []}
    print(json.dumps(result["environment"]))

    def save() -> None:
        result["seconds"] = round(time.monotonic() - begin, 1)
        if options.json:
            options.json.write_text(json.dumps(result, indent=1), "utf-8")

    checks: list[Check] = []
    for dtype in (torch.bfloat16, torch.float32) if not options.quick else (torch.bfloat16,):
        shape = SHAPE if dtype == torch.bfloat16 else HeadShape(2, 4, 64)
        e = example(LENGTHS, shape, dtype, device)
        found = [*correctness(e), *unmoved_bits(e)]
        print(f"{dtype}, Hk {shape.key_heads}, Hv {shape.value_heads}, D {shape.head_dim}")
        print(report(found), flush=True)
        result["checks"] += [asdict(c) | {"dtype": str(dtype), "is_right": c.is_right} for c in found]
        checks += found
        save()
    wrong = wrong_operators(checks)

    print(f"{'operator':16} {'size':12} {'layers':>6} {'us':>9} {'q1..q3':>19} {'GB/s':>8}")
    for workload in workloads(device, quick=options.quick):
        if workload.operator.split(" ")[0] in wrong or workload.operator in wrong:
            result["skipped"].append([workload.operator, workload.size, "wrong"])
            continue
        if time.monotonic() - begin > BUDGET_S:
            result["skipped"].append([workload.operator, workload.size, "out of time"])
            continue
        t = graph_us(workload)
        print(
            f"{t.operator:16} {t.size:12} {t.layers:6} {t.median_us:9.2f} {t.q1_us:9.2f}..{t.q3_us:8.2f} "
            f"{t.gb_per_s:8.1f}",
            flush=True,
        )
        result["timings"].append(asdict(t))
        save()
    for skipped in result["skipped"]:
        print("not timed:", *skipped)
    print(f"{time.monotonic() - begin:.0f} s")
    save()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
