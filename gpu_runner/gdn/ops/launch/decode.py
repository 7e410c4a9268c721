"""Launches of decode and of the verification of drafts."""

from __future__ import annotations

import torch

from gpu_runner.gdn.ops.modules import KERNELS, padded
from gpu_runner.gdn.ops.plan import ChunkPlan
from gpu_runner.gdn.ops.tiles import tile
from gpu_runner.gdn.registry import OpCtx


def packed_decode(
    mixed: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    pool: torch.Tensor,
    slots: torch.Tensor,
    has_initial_state: torch.Tensor,
    scale: float,
    *,
    ctx: OpCtx,
) -> torch.Tensor:
    """See `ops.calls.packed_decode`."""
    del ctx
    B = mixed.shape[0]
    HV, V, K = pool.shape[1:]
    o = torch.empty(B, HV, V, dtype=mixed.dtype, device=mixed.device)
    launch = tile("packed_decode", B)
    block_v = min(launch.block_v, padded(V))
    KERNELS.launch(
        "packed_decode", (-(-V // block_v) * B * HV,), launch,
        mixed, a, b, A_log, dt_bias, o, pool, slots, has_initial_state,
        mixed.stride(0), a.stride(0), b.stride(0), pool.stride(0),
        H=(mixed.shape[1] - HV * V) // (2 * K), HV=HV, K=K, V=V, KP=padded(K), BV=block_v, SCALE=scale,
    )  # fmt: skip
    return o


def verify_decode(
    mixed: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    pool: torch.Tensor,
    slots: torch.Tensor,
    has_initial_state: torch.Tensor,
    parents: torch.Tensor,
    plan: ChunkPlan,
    scale: float,
    *,
    ctx: OpCtx,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `ops.calls.verify_decode`."""
    del ctx
    N = mixed.shape[0]
    HV, V, K = pool.shape[1:]
    o = torch.empty(N, HV, V, dtype=mixed.dtype, device=mixed.device)
    snapshots = torch.empty(N, HV, V, K, dtype=torch.float32, device=mixed.device)
    launch = tile("verify_decode", plan.sequences)
    block_v = min(launch.block_v, padded(V))
    KERNELS.launch(
        "verify_decode", (-(-V // block_v) * plan.sequences * HV,), launch,
        mixed, a, b, A_log, dt_bias, o, snapshots, pool, slots, has_initial_state, parents, plan.offsets,
        mixed.stride(0), a.stride(0), b.stride(0), pool.stride(0),
        H=(mixed.shape[1] - HV * V) // (2 * K), HV=HV, K=K, V=V, KP=padded(K), BV=block_v, SCALE=scale,
    )  # fmt: skip
    return o, snapshots
