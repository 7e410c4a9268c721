"""Why a Triton realization declines a call: one function an entry point, a reason or None. Imports no Triton.

no_device: neither a GPU nor the interpreter. dtype: not float32 or bfloat16, or a state pool that is not float32.
layout: strides inside a row. head_dim: wider than the kernel's registers. no_chunk_indices: a plan without them.
scale: other than Dk^-0.5, which the kernels have built in.
"""

from __future__ import annotations

import math

import torch

from gpu_runner.gdn.ops.modules import is_interpreted
from gpu_runner.gdn.ops.plan import ChunkPlan

WIDEST_CHUNKED_HEAD = 128
WIDEST_DECODED_HEAD = 256
STORED = (torch.float32, torch.bfloat16)


def gating(a: torch.Tensor, b: torch.Tensor, A_log: torch.Tensor, dt_bias: torch.Tensor) -> str | None:
    """The reason to decline `calls.gating`."""
    return _common(a, b, A_log, dt_bias) or _rows(a, b) or _whole(A_log, dt_bias)


def l2norm(x: torch.Tensor, eps: float) -> str | None:
    """The reason to decline `calls.l2norm`."""
    del eps
    return _common(x) or _rows(x) or _width(WIDEST_DECODED_HEAD, x)


def rmsnorm_gated(o: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float) -> str | None:
    """The reason to decline `calls.rmsnorm_gated`."""
    del eps
    return _common(o, z, weight) or _rows(o, z) or _whole(weight) or _width(WIDEST_DECODED_HEAD, o)


def conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    pool: torch.Tensor,
    slots: torch.Tensor,
    has_initial_state: torch.Tensor,
    plan: ChunkPlan,
) -> str | None:
    """The reason to decline `calls.conv1d`."""
    return conv1d_update(x, weight, pool, slots, has_initial_state) or _planned(plan)


def conv1d_update(
    x: torch.Tensor,
    weight: torch.Tensor,
    pool: torch.Tensor,
    slots: torch.Tensor,
    has_initial_state: torch.Tensor,
) -> str | None:
    """The reason to decline `calls.conv1d_update`."""
    return _common(x, weight, pool) or _rows(x, pool) or _whole(weight, slots, has_initial_state)


def conv1d_verify(
    x: torch.Tensor,
    weight: torch.Tensor,
    pool: torch.Tensor,
    slots: torch.Tensor,
    has_initial_state: torch.Tensor,
    parents: torch.Tensor,
    plan: ChunkPlan,
) -> str | None:
    """The reason to decline `calls.conv1d_verify`."""
    del plan
    return conv1d_update(x, weight, pool, slots, has_initial_state) or _whole(parents)


def cumsum(g: torch.Tensor, plan: ChunkPlan) -> str | None:
    """The reason to decline `calls.cumsum`."""
    return _common(g) or _float32(g) or _whole(g) or _planned(plan)


def kkt_solve(k: torch.Tensor, beta: torch.Tensor, g_cum: torch.Tensor, plan: ChunkPlan) -> str | None:
    """The reason to decline `calls.kkt_solve`."""
    return (
        _common(k)
        or _float32(beta, g_cum)
        or _rows(k)
        or _whole(beta, g_cum)
        or _width(WIDEST_CHUNKED_HEAD, k)
        or _planned(plan)
    )


def wu(
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    g_cum: torch.Tensor,
    A: torch.Tensor,
    plan: ChunkPlan,
) -> str | None:
    """The reason to decline `calls.wu`."""
    return (
        _common(k, v, A)
        or _alike(k, v, A)
        or _float32(beta, g_cum)
        or _rows(k, v)
        or _whole(beta, g_cum, A)
        or _width(WIDEST_CHUNKED_HEAD, k, v)
        or _planned(plan)
    )


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
) -> str | None:
    """The reason to decline `calls.delta_h`."""
    del plan, snapshot_rows, snapshots
    return (
        _common(k, w, u)
        or _alike(k, w, u)
        or _float32(g_cum, pool)
        or _rows(k, pool)
        or _whole(w, u, g_cum, slots, has_initial_state)
        or _width(WIDEST_CHUNKED_HEAD, k, u)
    )


def chunk_o(
    q: torch.Tensor,
    k: torch.Tensor,
    v_new: torch.Tensor,
    h: torch.Tensor,
    g_cum: torch.Tensor,
    plan: ChunkPlan,
    scale: float,
) -> str | None:
    """The reason to decline `calls.chunk_o`."""
    return (
        _common(q, k, v_new, h)
        or _alike(q, k, v_new, h)
        or _float32(g_cum)
        or _rows(q, k)
        or _whole(v_new, h, g_cum)
        or _width(WIDEST_CHUNKED_HEAD, q, v_new)
        or _scaled(scale, q)
        or _planned(plan)
    )


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
) -> str | None:
    """The reason to decline `calls.packed_decode`."""
    return (
        _common(mixed, a, b, A_log, dt_bias)
        or _float32(pool)
        or _rows(mixed, a, b, pool)
        or _whole(A_log, dt_bias, slots, has_initial_state)
        or _width(WIDEST_DECODED_HEAD, pool)
        or _scaled(scale, pool)
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
    scale: float,
) -> str | None:
    """The reason to decline `calls.verify_decode`."""
    del plan
    declined = packed_decode(mixed, a, b, A_log, dt_bias, pool, slots, has_initial_state, scale)
    return declined or _whole(parents)


def _common(*tensors: torch.Tensor) -> str | None:
    if tensors[0].device.type != "cuda" and not (tensors[0].device.type == "cpu" and is_interpreted()):
        return "no_device"
    return None if all(t.dtype in STORED for t in tensors) else "dtype"


def _alike(*tensors: torch.Tensor) -> str | None:
    return None if len({t.dtype for t in tensors}) == 1 else "dtype"


def _float32(*tensors: torch.Tensor) -> str | None:
    return None if all(t.dtype == torch.float32 for t in tensors) else "dtype"


def _rows(*tensors: torch.Tensor) -> str | None:
    """Rows may be anywhere, but each must be contiguous."""
    return None if all(t.numel() == 0 or t[0].is_contiguous() for t in tensors) else "layout"


def _whole(*tensors: torch.Tensor) -> str | None:
    return None if all(t.is_contiguous() for t in tensors) else "layout"


def _width(most: int, *tensors: torch.Tensor) -> str | None:
    return None if all(t.shape[-1] <= most for t in tensors) else "head_dim"


def _scaled(scale: float, keys: torch.Tensor) -> str | None:
    return None if math.isclose(scale, keys.shape[-1] ** -0.5) else "scale"


def _planned(plan: ChunkPlan) -> str | None:
    return "no_chunk_indices" if plan.chunk_indices is None else None
