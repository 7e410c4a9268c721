"""Launches of the WY form: cumulated decay, the inverse, and w, u."""

from __future__ import annotations

import torch

from gpu_runner.gdn.ops.modules import KERNELS, padded
from gpu_runner.gdn.ops.plan import CHUNK, ChunkPlan
from gpu_runner.gdn.ops.tiles import tile
from gpu_runner.gdn.registry import OpCtx

CUMSUM_HEADS = 16


def cumsum(g: torch.Tensor, plan: ChunkPlan, *, ctx: OpCtx) -> torch.Tensor:
    """See `ops.calls.cumsum`."""
    del ctx
    HV = g.shape[1]
    out = torch.empty_like(g)
    KERNELS.launch(
        "cumsum", (plan.chunks * -(-HV // CUMSUM_HEADS),), tile("cumsum"),
        g, out, plan.offsets, plan.chunk_indices, HV=HV, BT=CHUNK, BH=CUMSUM_HEADS,
    )  # fmt: skip
    return out


def kkt_solve(k: torch.Tensor, beta: torch.Tensor, g_cum: torch.Tensor, plan: ChunkPlan, *, ctx: OpCtx) -> torch.Tensor:
    """See `ops.calls.kkt_solve`."""
    _, H, K = k.shape
    HV = beta.shape[1]
    A = ctx.scratch_on(k.device).zeroed("A", (plan.chunks, HV, CHUNK, CHUNK), k.dtype)
    KERNELS.launch(
        "kkt_solve", (plan.chunks * HV,), tile("kkt_solve"),
        k, beta, g_cum, A, plan.offsets, plan.chunk_indices, k.stride(0),
        H=H, HV=HV, K=K, KP=padded(K), BT=CHUNK,
    )  # fmt: skip
    return A


def wu(
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    g_cum: torch.Tensor,
    A: torch.Tensor,
    plan: ChunkPlan,
    *,
    ctx: OpCtx,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `ops.calls.wu`."""
    N, H, K = k.shape
    HV, V = v.shape[1:]
    w = ctx.scratch_on(k.device).empty("w", (N, HV, K), k.dtype)
    u = ctx.scratch_on(k.device).empty("u", (N, HV, V), v.dtype)
    KERNELS.launch(
        "wu", (plan.chunks * HV,), tile("wu"),
        k, v, beta, g_cum, A, w, u, plan.offsets, plan.chunk_indices, k.stride(0), v.stride(0),
        H=H, HV=HV, K=K, V=V, KP=padded(K), VP=padded(V), BT=CHUNK,
    )  # fmt: skip
    return w, u
