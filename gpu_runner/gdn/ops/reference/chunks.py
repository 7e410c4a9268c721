"""The chunked (WY) form of the gated delta rule, stage by stage."""

# ruff: noqa: ARG001 - every realization is called alike, with its context.
from __future__ import annotations

import torch

from gpu_runner.gdn.ops.plan import CHUNK, ChunkPlan
from gpu_runner.gdn.ops.reference.rounding import rounded, wide
from gpu_runner.gdn.registry import OpCtx

BLOCK = 16


def tiles(x: torch.Tensor, plan: ChunkPlan) -> torch.Tensor:
    """Packed [N, H, ...] as [chunks, H, 64, ...] in at least float32; places past a sequence's end are zero."""
    mask = plan.valid.reshape(*plan.valid.shape, *[1] * (x.dim() - 1))
    # where, not a product: a padded place may alias a row that holds infinities.
    return torch.where(mask, wide(x[plan.rows]), 0).transpose(1, 2)


def untile(x: torch.Tensor, out: torch.Tensor, plan: ChunkPlan) -> torch.Tensor:
    """`out`, whose packed rows [N, H, ...] now hold the valid places of x [chunks, H, 64, ...]."""
    out[plan.rows[plan.valid]] = x.transpose(1, 2)[plan.valid].to(out.dtype)
    return out


def _decay_ratios(g_cum: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """exp(G_i - G_j) where `low` [64, 64] is set, else 0; g_cum [chunks, Hv, 64]. Masked first: it would overflow."""
    difference = g_cum[..., :, None] - g_cum[..., None, :]
    return torch.where(low, torch.where(low, difference, 0).exp(), 0)


def _low(offset: int, device: torch.device) -> torch.Tensor:
    return torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=device).tril(offset)


def cumsum(g: torch.Tensor, plan: ChunkPlan, *, ctx: OpCtx) -> torch.Tensor:
    """See `ops.calls.cumsum`."""
    return untile(tiles(g, plan).cumsum(-1), torch.empty_like(g, memory_format=torch.contiguous_format), plan)


def kkt_solve(k: torch.Tensor, beta: torch.Tensor, g_cum: torch.Tensor, plan: ChunkPlan, *, ctx: OpCtx) -> torch.Tensor:
    """See `ops.calls.kkt_solve`."""
    per_key = beta.shape[1] // k.shape[1]
    keys = tiles(k, plan)
    products = (keys @ keys.transpose(-1, -2)).repeat_interleave(per_key, 1)
    ratios = _decay_ratios(tiles(g_cum, plan), _low(-1, k.device))
    lower = products * ratios * tiles(beta, plan)[..., None]
    unit = torch.eye(CHUNK, dtype=lower.dtype, device=k.device)
    inverse = torch.linalg.solve_triangular(lower + unit, unit, upper=False, unitriangular=True)
    A = ctx.scratch.zeroed("A", inverse.shape, k.dtype)
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
    w = ctx.scratch.empty("w", (v.shape[0], v.shape[1], k.shape[2]), k.dtype)
    u = ctx.scratch.empty("u", v.shape, v.dtype)
    return untile(inverse @ keys, w, plan), untile(inverse @ values, u, plan)


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
    h = ctx.scratch.empty("h", (plan.chunks, heads, u.shape[2], k.shape[2]), k.dtype)
    v_new = ctx.scratch.empty("v_new", u.shape, u.dtype)
    keep_before = [-1] * plan.chunks if snapshot_rows is None else snapshot_rows.tolist()
    kept = has_initial_state.tolist()
    for n, slot in enumerate(slots.tolist()):
        start, end = plan.cu_seqlens[n], plan.cu_seqlens[n + 1]
        if slot >= 0 and kept[n]:
            S = wide(pool[slot]).clone()
        else:
            S = wide(pool.new_zeros(pool.shape[1:]))
        for chunk in range(plan.first_chunks[n], plan.first_chunks[n + 1]):
            first = start + (chunk - plan.first_chunks[n]) * CHUNK
            rows = slice(first, min(first + CHUNK, end))
            h[chunk] = S.to(h.dtype)
            if snapshots is not None and keep_before[chunk] >= 0:
                snapshots[keep_before[chunk]] = S
            carried = rounded(S, w.dtype).transpose(-1, -2)
            fresh = wide(u[rows]).transpose(0, 1) - wide(w[rows]).transpose(0, 1) @ carried
            v_new[rows] = fresh.transpose(0, 1).to(v_new.dtype)
            g = wide(g_cum[rows]).t()
            faded = rounded(fresh * (g[:, -1:] - g).exp()[..., None], k.dtype)
            keys = wide(k[rows]).transpose(0, 1).repeat_interleave(per_key, 0)
            S = S * g[:, -1].exp()[:, None, None] + faded.transpose(-1, -2) @ keys
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
    scores = rounded(scores * _decay_ratios(g, _low(0, q.device)), v_new.dtype)
    carried = queries.repeat_interleave(per_key, 1) @ wide(h).transpose(-1, -2)
    o = carried * g[..., None].exp() * scale + scores @ tiles(v_new, plan) * scale
    return untile(o, torch.empty(v_new.shape, dtype=v_new.dtype, device=q.device), plan)
