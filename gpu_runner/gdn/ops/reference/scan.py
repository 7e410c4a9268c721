"""The scan over chunks, and the outputs from the states it leaves."""

# ruff: noqa: ARG001 - every realization is called alike, with its context.
from __future__ import annotations

import torch

from gpu_runner.gdn.ops.plan import CHUNK, ChunkPlan
from gpu_runner.gdn.ops.reference.rounding import rounded, wide
from gpu_runner.gdn.ops.reference.tiling import decay_ratios, tiles, untile
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
    heads, per_key = u.shape[1], u.shape[1] // k.shape[1]
    h = ctx.scratch_on(k.device).empty("h", (plan.chunks, heads, u.shape[2], k.shape[2]), k.dtype)
    v_new = ctx.scratch_on(k.device).empty("v_new", u.shape, u.dtype)
    keep_before = [-1] * plan.chunks if snapshot_rows is None else snapshot_rows.tolist()
    kept = has_initial_state.tolist()
    # Whole tiles, the last one too: a product of fewer rows would add in another order.
    w_tiles, u_tiles, k_tiles, g_tiles = (tiles(x, plan) for x in (w, u, k, g_cum))
    for n, slot in enumerate(slots.tolist()):
        start, end = plan.cu_seqlens[n], plan.cu_seqlens[n + 1]
        if slot >= 0 and kept[n]:
            S = wide(pool[slot]).clone()
        else:
            S = wide(pool.new_zeros(pool.shape[1:]))
        for chunk in range(plan.first_chunks[n], plan.first_chunks[n + 1]):
            first = start + (chunk - plan.first_chunks[n]) * CHUNK
            length = min(CHUNK, end - first)
            h[chunk] = S.to(h.dtype)
            if snapshots is not None and keep_before[chunk] >= 0:
                snapshots[keep_before[chunk]] = S
            carried = rounded(S, w.dtype).transpose(-1, -2)
            fresh = u_tiles[chunk] - w_tiles[chunk] @ carried
            v_new[first : first + length] = fresh[:, :length].transpose(0, 1).to(v_new.dtype)
            g = g_tiles[chunk]
            g_last = g[:, length - 1 : length]
            faded = rounded(fresh * (g_last - g).exp()[..., None], k.dtype)
            S = S * g_last.exp()[..., None] + faded.transpose(-1, -2) @ k_tiles[chunk].repeat_interleave(per_key, 0)
        if slot >= 0:
            pool[slot] = S.to(pool.dtype)
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
    per_key = v_new.shape[1] // q.shape[1]
    queries, keys, g = tiles(q, plan), tiles(k, plan), tiles(g_cum, plan)
    scores = (queries @ keys.transpose(-1, -2)).repeat_interleave(per_key, 1)
    scores = rounded(scores * decay_ratios(g, 0), v_new.dtype)
    carried = queries.repeat_interleave(per_key, 1) @ wide(h).transpose(-1, -2)
    o = carried * g[..., None].exp() * scale + scores @ tiles(v_new, plan) * scale
    return untile(o, torch.empty(v_new.shape, dtype=v_new.dtype, device=q.device), plan)
