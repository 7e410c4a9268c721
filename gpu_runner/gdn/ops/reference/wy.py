"""The WY form of each chunk: cumulated decay, the inverse (I + L)^-1, and w, u."""

# ruff: noqa: ARG001 - every realization is called alike, with its context.
from __future__ import annotations

import torch

from gpu_runner.gdn.ops.plan import CHUNK, ChunkPlan
from gpu_runner.gdn.ops.reference.rounding import rounded, wide
from gpu_runner.gdn.ops.reference.tiling import decay_ratios, tiles, untile
from gpu_runner.gdn.registry import OpCtx

BLOCK = 16


def cumsum(g: torch.Tensor, plan: ChunkPlan, *, ctx: OpCtx) -> torch.Tensor:
    """See `ops.calls.cumsum`."""
    return untile(tiles(g, plan).cumsum(-1), torch.empty_like(g, memory_format=torch.contiguous_format), plan)


def kkt_solve(k: torch.Tensor, beta: torch.Tensor, g_cum: torch.Tensor, plan: ChunkPlan, *, ctx: OpCtx) -> torch.Tensor:
    """See `ops.calls.kkt_solve`."""
    per_key = beta.shape[1] // k.shape[1]
    keys = tiles(k, plan)
    products = (keys @ keys.transpose(-1, -2)).repeat_interleave(per_key, 1)
    ratios = decay_ratios(tiles(g_cum, plan), -1)
    lower = products * ratios * tiles(beta, plan)[..., None]
    unit = torch.eye(CHUNK, dtype=lower.dtype, device=k.device)
    inverse = torch.linalg.solve_triangular(lower + unit, unit, upper=False, unitriangular=True)
    A = ctx.scratch_on(k.device).zeroed("A", inverse.shape, k.dtype)
    for row in range(0, CHUNK, BLOCK):
        # The tiles above the diagonal are zero and stay unwritten, as in the kernel.
        A[..., row : row + BLOCK, : row + BLOCK] = inverse[..., row : row + BLOCK, : row + BLOCK].to(k.dtype)
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
    per_key = v.shape[1] // k.shape[1]
    inverse, scale = wide(A), tiles(beta, plan)[..., None]
    values = rounded(tiles(v, plan) * scale, v.dtype)
    keys = tiles(k, plan).repeat_interleave(per_key, 1)
    keys = rounded(keys * scale * tiles(g_cum, plan)[..., None].exp(), k.dtype)
    w = ctx.scratch_on(k.device).empty("w", (v.shape[0], v.shape[1], k.shape[2]), k.dtype)
    u = ctx.scratch_on(k.device).empty("u", v.shape, v.dtype)
    return untile(inverse @ keys, w, plan), untile(inverse @ values, u, plan)
