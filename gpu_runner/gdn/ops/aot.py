"""Compiles every kernel to a real cubin without a GPU, and fingerprints it.

    python -m gpu_runner.gdn.ops.aot                 # a table: seconds, shared memory, wgmma, fingerprint
    python -m gpu_runner.gdn.ops.aot --json FILE     # and the same as JSON

A gate for syntax, types and shared memory; a kernel that compiles may still be wrong. Exit 1 if any kernel fails. The
interpreter must be off: TRITON_INTERPRET unset.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_runner.gdn.ops.modules import KERNELS, SOURCES, is_interpreted, padded
from gpu_runner.gdn.ops.tiles import tile

SHARED_MEMORY_SM90_BYTES = 227 * 1024
"""The most that one block may use on compute capability 9.0: CUDA C++ Programming Guide, table of capabilities."""


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The heads of a model: Qwen3-Next-80B and Qwen3.5/3.6-35B by default."""

    key_heads: int = 16
    value_heads: int = 32
    head_dim: int = 128


@dataclass(frozen=True, slots=True)
class Compiled:
    """One kernel's build. sha256 is of the cubin without line information, which would hold the source's path."""

    kernel: str
    dtype: str
    capability: int
    num_warps: int
    seconds: float
    shared_bytes: int
    uses_wgmma: bool
    sha256: str


@dataclass(frozen=True, slots=True)
class Job:
    """What `triton.compile` must know: types of the run-time arguments in order, constants, the tile's operator."""

    kernel: str
    types: tuple[str, ...]
    constants: dict[str, Any]
    operator: str


def jobs(dtype: str, shape: HeadShape) -> Iterator[Job]:
    """Every kernel, as it is launched for tensors of `dtype` ("bf16" or "fp32")."""
    H, HV, D = shape.key_heads, shape.value_heads, shape.head_dim
    DP, C = padded(D), 2 * H * D + HV * D
    x, f, i, n, kept = f"*{dtype}", "*fp32", "*i32", "*i64", "*i1"
    heads = {"H": H, "HV": HV, "K": D, "KP": DP}
    scale = {"SCALE": D**-0.5}
    yield Job("gating", (x, x, f, f, f, f, "i32", "i32", "i32"), {"HV": HV, "BLOCK": 1024}, "gating")
    yield Job("l2norm", (x, x, "i32", "i32", "fp32"), {"H": H, "D": D, "DP": DP, "BR": 32}, "l2norm")
    yield Job(
        "rmsnorm_gated",
        (x, x, x, x, "i32", "i32", "i32", "fp32"),
        {"H": HV, "D": D, "DP": DP, "BR": 8},
        "rmsnorm_gated",
    )
    yield Job("conv1d", (x, x, x, n, kept, i, i, x, "i32", "i32"), {"C": C, "BT": 64, "BC": 64}, "conv1d")
    yield Job("conv1d_state", (x, x, n, kept, i, "i32", "i32"), {"C": C, "BC": 256}, "conv1d")
    yield Job("conv1d_update", (x, x, x, n, kept, x, "i32", "i32"), {"C": C, "BC": 256}, "conv1d")
    yield Job("conv1d_verify", (x, x, x, n, kept, n, i, x, "i32", "i32"), {"C": C, "BC": 256}, "conv1d")
    yield Job("cumsum", (f, f, i, i), {"HV": HV, "BT": 64, "BH": 16}, "cumsum")
    yield Job("kkt_solve", (x, f, f, x, i, i, "i32"), heads | {"BT": 64}, "kkt_solve")
    yield Job("wu", (x, x, f, f, x, x, x, i, i, "i32", "i32"), heads | {"V": D, "VP": DP, "BT": 64}, "wu")
    for snapshot in (False, True):
        yield Job(
            "delta_h",
            (x, x, x, f, x, x, f, n, kept, i if snapshot else n, f, i, i, "i32", "i32"),
            heads | {"V": D, "BV": min(tile("delta_h").block_v, DP), "BT": 64, "SNAPSHOT": snapshot},
            "delta_h",
        )
    yield Job(
        "chunk_o",
        (x, x, x, x, f, x, i, i, "i32", "i32"),
        heads | scale | {"V": D, "BV": min(tile("chunk_o").block_v, DP), "BT": 64},
        "chunk_o",
    )
    state = heads | scale | {"V": D, "BV": min(tile("packed_decode").block_v, DP)}
    strides = ("i32",) * 4
    yield Job("packed_decode", (x, x, x, f, f, x, f, n, kept, *strides), state, "packed_decode")
    yield Job("verify_decode", (x, x, x, f, f, x, f, f, n, kept, n, i, *strides), state, "verify_decode")


def compile_job(job: Job, dtype: str, capability: int = 90) -> Compiled:
    """The kernel built for `capability`; whatever Triton raises when it cannot be."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = KERNELS.kernel(job.kernel)
    types = iter(job.types)
    signature = {name: "constexpr" if name in job.constants else next(types) for name in kernel.arg_names}
    constexprs = {(kernel.arg_names.index(name),): value for name, value in job.constants.items()}
    # Pointers and strides are multiples of 16 in a real launch, which lets Triton use wide and asynchronous copies.
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if name[:2] in {"p_", "s_"}}
    launch = tile(job.operator)
    start = time.perf_counter()
    built = triton.compile(
        ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=aligned),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": launch.num_warps, "num_stages": launch.num_stages},
    )
    return Compiled(
        kernel=job.kernel,
        dtype=dtype,
        capability=capability,
        num_warps=launch.num_warps,
        seconds=round(time.perf_counter() - start, 3),
        shared_bytes=built.metadata.shared,
        uses_wgmma="wgmma.mma_async" in str(built.asm["ptx"]),
        sha256=hashlib.sha256(built.asm["cubin"]).hexdigest(),
    )


def main(arguments: list[str] | None = None) -> int:
    """0 when every kernel compiled and fits, 1 otherwise."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dtype", action="append", choices=["bf16", "fp32"])
    parser.add_argument("--head-dim", type=int, default=128)
    options = parser.parse_args(arguments)
    if is_interpreted():
        parser.error("unset TRITON_INTERPRET: interpreted kernels cannot be compiled")
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
    built = []
    for dtype in options.dtype or ["bf16", "fp32"]:
        for job in jobs(dtype, HeadShape(head_dim=options.head_dim)):
            result = compile_job(job, dtype)
            built.append(result)
            print(
                f"sm_{result.capability} {dtype} {result.kernel:14} warps {result.num_warps} {result.seconds:6.2f} s  "
                f"shared {result.shared_bytes:6}  wgmma {result.uses_wgmma!s:5}  {result.sha256[:12]}"
            )
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in built], indent=1), "utf-8")
    too_big = [r for r in built if r.shared_bytes > SHARED_MEMORY_SM90_BYTES]
    missing = set(SOURCES) - {r.kernel for r in built}
    for result in too_big:
        print(f"{result.kernel} {result.dtype}: {result.shared_bytes} bytes of shared memory do not fit")
    for name in sorted(missing):
        print(f"{name}: no job compiles it")
    return 1 if too_big or missing else 0


if __name__ == "__main__":
    sys.exit(main())
