"""Launches of the convolution's three forms."""

from __future__ import annotations

import torch

from gpu_runner.gdn.ops.modules import KERNELS
from gpu_runner.gdn.ops.plan import CHUNK, ChunkPlan
from gpu_runner.gdn.ops.tiles import tile
from gpu_runner.gdn.registry import OpCtx

PREFILL_CHANNELS = 64
DECODE_CHANNELS = 256


def conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    pool: torch.Tensor,
    slots: torch.Tensor,
    has_initial_state: torch.Tensor,
    plan: ChunkPlan,
    *,
    ctx: OpCtx,
) -> torch.Tensor:
    """See `ops.calls.conv1d`."""
    del ctx
    N, C = x.shape
    y = torch.empty(N, C, dtype=x.dtype, device=x.device)
    KERNELS.launch(
        "conv1d", (plan.chunks * -(-C // PREFILL_CHANNELS),), tile("conv1d"),
        x, weight, pool, slots, has_initial_state, plan.offsets, plan.chunk_indices, y, x.stride(0), pool.stride(0),
        C=C, BT=CHUNK, BC=PREFILL_CHANNELS,
    )  # fmt: skip
    KERNELS.launch(
        "conv1d_state", (plan.sequences * -(-C // DECODE_CHANNELS),), tile("conv1d"),
        x, pool, slots, has_initial_state, plan.offsets, x.stride(0), pool.stride(0), C=C, BC=DECODE_CHANNELS,
    )  # fmt: skip
    return y


def conv1d_update(
    x: torch.Tensor,
    weight: torch.Tensor,
    pool: torch.Tensor,
    slots: torch.Tensor,
    has_initial_state: torch.Tensor,
    *,
    ctx: OpCtx,
) -> torch.Tensor:
    """See `ops.calls.conv1d_update`."""
    del ctx
    B, C = x.shape
    y = torch.empty(B, C, dtype=x.dtype, device=x.device)
    KERNELS.launch(
        "conv1d_update", (B * -(-C // DECODE_CHANNELS),), tile("conv1d"),
        x, weight, pool, slots, has_initial_state, y, x.stride(0), pool.stride(0), C=C, BC=DECODE_CHANNELS,
    )  # fmt: skip
    return y


def conv1d_verify(
    x: torch.Tensor,
    weight: torch.Tensor,
    pool: torch.Tensor,
    slots: torch.Tensor,
    has_initial_state: torch.Tensor,
    parents: torch.Tensor,
    plan: ChunkPlan,
    *,
    ctx: OpCtx,
) -> torch.Tensor:
    """See `ops.calls.conv1d_verify`."""
    del ctx
    N, C = x.shape
    y = torch.empty(N, C, dtype=x.dtype, device=x.device)
    KERNELS.launch(
        "conv1d_verify", (plan.sequences * -(-C // DECODE_CHANNELS),), tile("conv1d"),
        x, weight, pool, slots, has_initial_state, parents, plan.offsets, y, x.stride(0), pool.stride(0),
        C=C, BC=DECODE_CHANNELS,
    )  # fmt: skip
    return y
