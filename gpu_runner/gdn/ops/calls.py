"""The operators of Gated DeltaNet, as the model calls them.

Sizes: N packed tokens, B sequences, C chunks of 64, Hk key and Hv value heads (Hv a multiple of Hk), Dk and Dv their
dimensions, conv_dim = 2*Hk*Dk + Hv*Dv laid out as [q | k | v]. "Model dtype" is bfloat16 or float32.
State pools are read and written in place by slot: recurrent [slots, Hv, Dv, Dk] float32, convolution
[slots, conv_dim, 3] raw inputs, oldest first. Slot -1 touches nothing; no two sequences of a call share a slot.
`has_initial_state` bool [B]: where False a sequence starts from zeros, whatever its slot holds.
The formulas: Yang, Kautz, Hatamizadeh 2025, "Gated Delta Networks: Improving Mamba2 with Delta Rule".

Results marked "scratch" are overwritten by the next call of the same operator on the same scratch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpu_runner.gdn.ops.errors import ShapeError
from gpu_runner.gdn.ops.plan import ChunkPlan, SnapshotPlan
from gpu_runner.gdn.ops.tiles import tune_on_first_use
from gpu_runner.gdn.registry import OpCtx, Operation

L2_EPS = 1e-6

_GATING = Operation("gating", "elementwise", "gating")
_L2NORM = Operation("l2norm", "elementwise", "l2norm")
_RMSNORM_GATED = Operation("rmsnorm_gated", "elementwise", "rmsnorm_gated")
_CONV1D = Operation("conv1d", "convolution", "conv1d")
_CONV1D_UPDATE = Operation("conv1d", "convolution", "conv1d_update")
_CONV1D_VERIFY = Operation("conv1d", "convolution", "conv1d_verify")
_CUMSUM = Operation("cumsum", "wy", "cumsum")
_KKT_SOLVE = Operation("kkt_solve", "wy", "kkt_solve")
_WU = Operation("wu", "wy", "wu")
_DELTA_H = Operation("delta_h", "scan", "delta_h")
_CHUNK_O = Operation("chunk_o", "scan", "chunk_o")
_PACKED_DECODE = Operation("packed_decode", "decode", "packed_decode")
_VERIFY_DECODE = Operation("verify_decode", "decode", "verify_decode")


@dataclass(frozen=True, slots=True)
class DeltaStates:
    """What the scan over chunks leaves.

    h: scratch, [C, Hv, Dv, Dk] model dtype, the state BEFORE each chunk. v_new: scratch, [N, Hv, Dv] model dtype.
    snapshots: float32 [len(plan.tracks), Hv, Dv, Dk], the states the snapshot plan asked for; None without a plan.
    """

    h: torch.Tensor
    v_new: torch.Tensor
    snapshots: torch.Tensor | None


def gating(
    a: torch.Tensor, b: torch.Tensor, A_log: torch.Tensor, dt_bias: torch.Tensor, *, ctx: OpCtx
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log decay g = -exp(A_log) * softplus(a + dt_bias) and beta = sigmoid(b), both float32 [N, Hv].

    a, b [N, Hv] model dtype, rows may be strided; A_log, dt_bias [Hv].
    """
    _same_heads(a=a, b=b, A_log=A_log, dt_bias=dt_bias)
    return _GATING(a, b, A_log, dt_bias, ctx=ctx, device=a.device)


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
    """SiLU of the causal convolution of packed sequences, [N, conv_dim]; the last three raw inputs go to the pool.

    x [N, conv_dim], rows may be strided; weight [conv_dim, 4], column 3 meets the current token.
    """
    _conv_shapes(x, weight, pool, slots, plan)
    return _CONV1D(x, weight, pool, slots, has_initial_state, plan, ctx=ctx, device=x.device)


def conv1d_update(
    x: torch.Tensor,
    weight: torch.Tensor,
    pool: torch.Tensor,
    slots: torch.Tensor,
    has_initial_state: torch.Tensor,
    *,
    ctx: OpCtx,
) -> torch.Tensor:
    """`conv1d` of exactly one token per sequence: x [B, conv_dim] to [B, conv_dim]; rows of slot -1 give zeros."""
    _conv_shapes(x, weight, pool, slots, None)
    return _CONV1D_UPDATE(x, weight, pool, slots, has_initial_state, ctx=ctx, device=x.device)


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
    """The convolution of draft tokens along their ancestors, [N, conv_dim]; the pool is only read.

    parents int64 [N]: index inside the sequence of each draft's parent, smaller than its own; -1: the sequence's
    history in the pool.
    """
    _conv_shapes(x, weight, pool, slots, plan)
    _tree(parents, plan)
    return _CONV1D_VERIFY(x, weight, pool, slots, has_initial_state, parents, plan, ctx=ctx, device=x.device)


def l2norm(x: torch.Tensor, *, eps: float = L2_EPS, ctx: OpCtx) -> torch.Tensor:
    """X / sqrt(sum(x^2) + eps) over the last axis, in the dtype of x [N, Hk, Dk]; rows may be strided."""
    return _L2NORM(x, eps, ctx=ctx, device=x.device)


def cumsum(g: torch.Tensor, plan: ChunkPlan, *, ctx: OpCtx) -> torch.Tensor:
    """Inclusive sums of g [N, Hv] inside each chunk, float32 [N, Hv]."""
    return _CUMSUM(g, plan, ctx=ctx, device=g.device)


def kkt_solve(k: torch.Tensor, beta: torch.Tensor, g_cum: torch.Tensor, plan: ChunkPlan, *, ctx: OpCtx) -> torch.Tensor:
    """(I + L)^-1 with L_ij = beta_i (k_i . k_j) exp(G_i - G_j) for i > j; scratch, [C, Hv, 64, 64] dtype of k.

    k [N, Hk, Dk] normalised; beta, g_cum float32 [N, Hv]. Rows past a sequence's end are those of the unit matrix.
    """
    _grouped_heads(k, beta)
    return _KKT_SOLVE(k, beta, g_cum, plan, ctx=ctx, device=k.device)


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
    """Scratch w = A (beta exp(G) k) [N, Hv, Dk] and u = A (beta v) [N, Hv, Dv], model dtype.

    v [N, Hv, Dv], rows may be strided; A from `kkt_solve`.
    """
    _grouped_heads(k, v)
    return _WU(k, v, beta, g_cum, A, plan, ctx=ctx, device=k.device)


def delta_h(
    k: torch.Tensor,
    w: torch.Tensor,
    u: torch.Tensor,
    g_cum: torch.Tensor,
    pool: torch.Tensor,
    slots: torch.Tensor,
    has_initial_state: torch.Tensor,
    plan: ChunkPlan,
    *,
    snapshots: SnapshotPlan | None = None,
    ctx: OpCtx,
) -> DeltaStates:
    """The scan over each sequence's chunks; the final states replace those of the pool.

    Per chunk: h = S; v_new = u - w S^T; S = S exp(G_last) + (v_new exp(G_last - G))^T k. `plan_snapshots` makes
    `snapshots` from checkpoints; those at a sequence's end are in the pool afterwards.
    """
    _grouped_heads(k, u)
    _pool_shape(pool, u.shape[1], u.shape[2], k.shape[2], slots, plan.sequences)
    rows, kept = None, None
    if snapshots is not None:
        rows = snapshots.rows
        kept = torch.empty(len(snapshots.tracks), *pool.shape[1:], dtype=pool.dtype, device=pool.device)

    def scan() -> tuple[torch.Tensor, torch.Tensor]:
        arguments = (k, w, u, g_cum, pool, slots, has_initial_state, plan, rows, kept)
        return _DELTA_H(*arguments, ctx=ctx, device=k.device)

    tune_on_first_use("delta_h", scan)
    h, v_new = scan()
    return DeltaStates(h, v_new, kept)


def chunk_o(
    q: torch.Tensor,
    k: torch.Tensor,
    v_new: torch.Tensor,
    h: torch.Tensor,
    g_cum: torch.Tensor,
    plan: ChunkPlan,
    *,
    scale: float | None = None,
    ctx: OpCtx,
) -> torch.Tensor:
    """Outputs scale * ((q S^T) exp(G) + tril((q k^T) exp(G_i - G_j)) v_new), [N, Hv, Dv] model dtype.

    q, k [N, Hk, Dk] normalised; `scale` is Dk^-0.5 by default, and the Triton realization has no other.
    """
    _grouped_heads(q, v_new)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return _CHUNK_O(q, k, v_new, h, g_cum, plan, scale, ctx=ctx, device=q.device)


def packed_decode(
    mixed: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    pool: torch.Tensor,
    slots: torch.Tensor,
    has_initial_state: torch.Tensor,
    *,
    scale: float | None = None,
    ctx: OpCtx,
) -> torch.Tensor:
    """One token of each sequence, gates and l2 norm included: [B, Hv, Dv] model dtype, zeros for slot -1.

    mixed [B, conv_dim] after the convolution; a, b [B, Hv], rows may be strided. q, k, beta and the state stay
    float32: only the output is rounded.
    """
    _same_heads(a=a, b=b, A_log=A_log, dt_bias=dt_bias)
    scale = _recurrent_shapes(mixed, a, pool, slots, mixed.shape[0], scale)
    return _PACKED_DECODE(
        mixed, a, b, A_log, dt_bias, pool, slots, has_initial_state, scale, ctx=ctx, device=mixed.device
    )


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
    *,
    scale: float | None = None,
    ctx: OpCtx,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs [N, Hv, Dv] of draft tokens, and the state after each, float32 [N, Hv, Dv, Dk]; the pool is only read.

    The arithmetic of one draft is that of `packed_decode`. parents as in `conv1d_verify`. Rows of sequences with slot
    -1 are zero. `ops.verify.commit_path` moves accepted states into the pools.
    """
    _same_heads(a=a, b=b, A_log=A_log, dt_bias=dt_bias)
    _tree(parents, plan)
    scale = _recurrent_shapes(mixed, a, pool, slots, plan.sequences, scale)
    return _VERIFY_DECODE(
        mixed, a, b, A_log, dt_bias, pool, slots, has_initial_state, parents, plan, scale,
        ctx=ctx, device=mixed.device,
    )  # fmt: skip


def rmsnorm_gated(
    o: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6, ctx: OpCtx
) -> torch.Tensor:
    """O / sqrt(mean(o^2) + eps) * weight * silu(z) per head, in the dtype of o [N, Hv, Dv], rounded once, at the end.

    z [N, Hv, Dv], rows may be strided; weight [Dv], plain (not 1 + weight).
    """
    if o.shape != z.shape or weight.shape != o.shape[-1:]:
        raise ShapeError(f"o {tuple(o.shape)}, z {tuple(z.shape)} and weight {tuple(weight.shape)} do not fit")
    return _RMSNORM_GATED(o, z, weight, eps, ctx=ctx, device=o.device)


def _same_heads(**tensors: torch.Tensor) -> None:
    if len({t.shape[-1] for t in tensors.values()}) != 1:
        raise ShapeError(f"value heads differ: { {name: tuple(t.shape) for name, t in tensors.items()} }")


def _grouped_heads(keys: torch.Tensor, values: torch.Tensor) -> None:
    if keys.shape[0] != values.shape[0] or values.shape[1] % keys.shape[1]:
        raise ShapeError(
            f"keys {tuple(keys.shape)} and values {tuple(values.shape)}: rows must agree, and value heads be a "
            "multiple of key heads"
        )


def _conv_shapes(
    x: torch.Tensor, weight: torch.Tensor, pool: torch.Tensor, slots: torch.Tensor, plan: ChunkPlan | None
) -> None:
    rows = slots.shape[0] if plan is None else plan.tokens
    sequences = slots.shape[0] if plan is None else plan.sequences
    channels = x.shape[1]
    if weight.shape != (channels, 4) or pool.shape[1:] != (channels, 3):
        raise ShapeError(f"{channels} channels want weight [., 4] and pool [slots, ., 3], not {tuple(weight.shape)} "
                         f"and {tuple(pool.shape)}")  # fmt: skip
    if x.shape[0] != rows or slots.shape[0] != sequences:
        raise ShapeError(f"{x.shape[0]} rows and {slots.shape[0]} slots, expected {rows} and {sequences}")


def _pool_shape(
    pool: torch.Tensor, heads: int, value_dim: int, key_dim: int, slots: torch.Tensor, sequences: int
) -> None:
    if pool.shape[1:] != (heads, value_dim, key_dim):
        raise ShapeError(f"pool {tuple(pool.shape)}, expected [slots, {heads}, {value_dim}, {key_dim}]")
    if slots.shape != (sequences,):
        raise ShapeError(f"{tuple(slots.shape)} slots for {sequences} sequences")


def _recurrent_shapes(
    mixed: torch.Tensor, a: torch.Tensor, pool: torch.Tensor, slots: torch.Tensor, sequences: int, scale: float | None
) -> float:
    heads, value_dim, key_dim = pool.shape[1:]
    _pool_shape(pool, a.shape[1], value_dim, key_dim, slots, sequences)
    queries_and_keys = mixed.shape[1] - heads * value_dim
    if queries_and_keys <= 0 or queries_and_keys % (2 * key_dim) or heads % (queries_and_keys // (2 * key_dim)):
        raise ShapeError(f"rows of {mixed.shape[1]} do not hold [q | k | v] for a pool {tuple(pool.shape)}")
    return key_dim**-0.5 if scale is None else scale


def _tree(parents: torch.Tensor, plan: ChunkPlan) -> None:
    if parents.shape != (plan.tokens,):
        raise ShapeError(f"{tuple(parents.shape)} parents for {plan.tokens} drafts")
