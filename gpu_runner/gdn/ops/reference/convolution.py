"""The causal depthwise convolution of width 4 with SiLU, in its three forms."""

# ruff: noqa: ARG001 - every realization is called alike, with its context.
from __future__ import annotations

import torch

from gpu_runner.gdn.ops.plan import ChunkPlan
from gpu_runner.gdn.ops.reference.rounding import silu, wide
from gpu_runner.gdn.registry import OpCtx

WIDTH = 4


def history(pool: torch.Tensor, slot: int, *, keep: bool) -> torch.Tensor:
    """The three raw inputs before a sequence's first token, [3, C], oldest first; zeros when there are none."""
    if slot < 0 or not keep:
        return pool.new_zeros(WIDTH - 1, pool.shape[1])
    return pool[slot].t()


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
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    kept = has_initial_state.tolist()
    for n, slot in enumerate(slots.tolist()):
        start, end = plan.cu_seqlens[n], plan.cu_seqlens[n + 1]
        window = torch.cat([history(pool, slot, keep=kept[n]).to(x.dtype), x[start:end]])
        taps = torch.stack([window[i : i + end - start] for i in range(WIDTH)])
        out[start:end] = _filtered(taps, weight).to(x.dtype)
        if slot >= 0:
            pool[slot] = window[-(WIDTH - 1) :].t().to(pool.dtype)
    return out


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
    old = pool[slots.clamp(min=0)].to(x.dtype) * (has_initial_state & (slots >= 0))[:, None, None]
    window = torch.cat([old, x[:, :, None]], dim=2)
    out = _filtered(window.permute(2, 0, 1), weight).to(x.dtype)
    live = slots >= 0
    pool[slots[live]] = window[live, :, 1:].to(pool.dtype)
    return torch.where(live[:, None], out, 0)


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
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    kept = has_initial_state.tolist()
    for n, slot in enumerate(slots.tolist()):
        start, end = plan.cu_seqlens[n], plan.cu_seqlens[n + 1]
        window = torch.cat([history(pool, slot, keep=kept[n]).to(x.dtype), x[start:end]])
        # Place WIDTH - 1 + i of the window is draft i; places 0 to 2 are the history, each the parent of the next.
        before = torch.cat([torch.tensor([0, 0, 1]), parents[start:end].cpu() + WIDTH - 1])
        place = torch.arange(WIDTH - 1, WIDTH - 1 + end - start)
        taps = [window[place]]
        for _ in range(WIDTH - 1):
            place = before[place]
            taps.insert(0, window[place])
        out[start:end] = _filtered(torch.stack(taps), weight).to(x.dtype)
    return out


def _filtered(taps: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """SiLU of the weighted sum of taps [4, T, C], oldest first, added in that order."""
    total = wide(taps[0]) * wide(weight[:, 0])
    for i in range(1, WIDTH):
        total = total + wide(taps[i]) * wide(weight[:, i])
    return silu(total)
