"""Launches of the scan over chunks and of the outputs."""

from __future__ import annotations

import torch

from gpu_runner.gdn.ops.modules import KERNELS, padded
from gpu_runner.gdn.ops.plan import CHUNK, ChunkPlan
from gpu_runner.gdn.ops.tiles import tile
from gpu_runner.gdn.registry import OpCtx


def delta_h(
    k: torch.Tensor,
    w: torch.Tensor,
    u: torch.Tensor,
    g_cum: torch.Tensor,
    pool: torch.Tensor,
    slots: torch.Tensor,
    has_initial_state: torch.Tensor,
    plan: ChunkPlan,
    snapshot_rows: torch.Tensor | None,
    snapshots: torch.Tensor | None,
    *,
    ctx: OpCtx,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `ops.calls.delta_h`."""
    _, H, K = k.shape
    HV, V = u.shape[1:]
    h = ctx.scratch_on(k.device).empty("h", (plan.chunks, HV, V, K), k.dtype)
    v_new = ctx.scratch_on(k.device).empty("v_new", u.shape, u.dtype)
    launch = tile("delta_h")
    block_v = min(launch.block_v, padded(V))
    KERNELS.launch(
        "delta_h", (-(-V // block_v) * plan.sequences * HV,), launch,
        k, w, u, g_cum, v_new, h, pool, slots, has_initial_state,
        # Without a snapshot these two are never read; any tensor will do.
        slots if snapshot_rows is None else snapshot_rows, pool if snapshots is None else snapshots,
        plan.offsets, plan.first_chunk, k.stride(0), pool.stride(0),
        H=H, HV=HV, K=K, V=V, KP=padded(K), BV=block_v, BT=CHUNK, SNAPSHOT=snapshot_rows is not None,
    )  # fmt: skip
    return h, v_new


def chunk_o(
    q: torch.Tensor,
    k: torch.Tensor,
    v_new: torch.Tensor,
    h: torch.Tensor,
    g_cum: torch.Tensor,
    plan: ChunkPlan,
    scale: float,
    *,
    ctx: OpCtx,
) -> torch.Tensor:
    """See `ops.calls.chunk_o`."""
    del ctx
    _, H, K = q.shape
    HV, V = v_new.shape[1:]
    o = torch.empty(v_new.shape, dtype=v_new.dtype, device=q.device)
    launch = tile("chunk_o")
    block_v = min(launch.block_v, padded(V))
    KERNELS.launch(
        "chunk_o", (-(-V // block_v) * plan.chunks * HV,), launch,
        q, k, v_new, h, g_cum, o, plan.offsets, plan.chunk_indices, q.stride(0), k.stride(0),
        H=H, HV=HV, K=K, V=V, KP=padded(K), BV=block_v, BT=CHUNK, SCALE=scale,
    )  # fmt: skip
    return o
