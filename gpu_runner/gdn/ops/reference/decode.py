"""The recurrent form, one token at a time: decode, and verification of drafts."""

# ruff: noqa: ARG001 - every realization is called alike, with its context.
from __future__ import annotations

import torch

from gpu_runner.gdn.ops.plan import ChunkPlan
from gpu_runner.gdn.ops.reference.elementwise import decay_and_beta, normalised
from gpu_runner.gdn.ops.reference.rounding import wide
from gpu_runner.gdn.ops.tiles import reduction_groups
from gpu_runner.gdn.registry import OpCtx

L2_EPS = 1e-6


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
    live = slots >= 0
    q, k, v = _split(mixed, pool)
    g, beta = decay_and_beta(a, b, A_log, dt_bias)
    S = torch.where((live & has_initial_state)[:, None, None, None], wide(pool[slots.clamp(min=0)]), 0)
    groups = reduction_groups("packed_decode", mixed.shape[0], pool.shape[-1])
    o, S = _step(q * scale, k, v, g, beta, S, groups)
    pool[slots[live]] = S[live].to(pool.dtype)
    return torch.where(live[:, None, None], o, 0).to(mixed.dtype)


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
    q, k, v = _split(mixed, pool)
    g, beta = decay_and_beta(a, b, A_log, dt_bias)
    N, (HV, V, K) = mixed.shape[0], pool.shape[1:]
    out = torch.zeros(N, HV, V, dtype=mixed.dtype, device=mixed.device)
    snapshots = torch.zeros(N, HV, V, K, dtype=pool.dtype, device=pool.device)
    kept, above = has_initial_state.tolist(), parents.tolist()
    groups = reduction_groups("verify_decode", plan.sequences, K)
    for n, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        start = plan.cu_seqlens[n]
        root = pool[slot] if kept[n] else torch.zeros_like(pool[slot])
        for t in range(start, plan.cu_seqlens[n + 1]):
            S = wide(root if above[t] < 0 else snapshots[start + above[t]])
            row = slice(t, t + 1)
            o, S = _step(q[row] * scale, k[row], v[row], g[row], beta[row], S[None], groups)
            out[t] = o[0].to(out.dtype)
            snapshots[t] = S[0].to(snapshots.dtype)
    return out, snapshots


def _split(mixed: torch.Tensor, pool: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k [N, Hv, Dk] normalised, v [N, Hv, Dv], all wide, from convolved rows [q | k | v]."""
    HV, V, K = pool.shape[1:]
    HK = (mixed.shape[1] - HV * V) // (2 * K)
    q, k, v = wide(mixed).split([HK * K, HK * K, HV * V], dim=1)
    q, k = (normalised(x.reshape(-1, HK, K), L2_EPS).repeat_interleave(HV // HK, 1) for x in (q, k))
    return q, k, v.reshape(-1, HV, V)


def _step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    S: torch.Tensor,
    groups: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [B, Hv, Dv] and new state [B, Hv, Dv, Dk] after one token."""
    S = S * g.exp()[..., None, None]
    d = (v - _contract(S, k, groups)) * beta[..., None]
    S = S + d[..., None] * k[..., None, :]
    return _contract(S, q, groups), S


def _contract(S: torch.Tensor, x: torch.Tensor, groups: int) -> torch.Tensor:
    """Sum over the key dimension of S [.., Dv, Dk] * x [.., Dk], in `groups` partial sums as that many warps add it."""
    products = S * x[..., None, :]
    return products.unflatten(-1, (groups, -1)).sum(-1).sum(-1)
