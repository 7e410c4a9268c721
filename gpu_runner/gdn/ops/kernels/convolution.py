"""The causal depthwise convolution of width 4 with SiLU."""

# ruff: noqa: ANN001, ANN201 - Triton compiles these: parameters have no Python types.
from __future__ import annotations

import triton
import triton.language as tl

from gpu_runner.gdn.ops.kernels.shared import cast, silu


@triton.jit
def conv1d_kernel(
    p_x, p_w, p_pool, p_slots, p_kept, p_cu, p_chunks, p_y, s_x, s_pool, C: tl.constexpr, BT: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """The outputs of one chunk of one sequence for BC channels; reads the pool only. Grid (chunks * cdiv(C, BC),)."""
    NC: tl.constexpr = (C + BC - 1) // BC
    i_c = tl.program_id(0) // NC
    o_c = (tl.program_id(0) % NC) * BC + tl.arange(0, BC)
    m_c = o_c < C
    i_n = tl.load(p_chunks + 2 * i_c)
    i_t = tl.load(p_chunks + 2 * i_c + 1)
    bos = tl.load(p_cu + i_n).to(tl.int64)
    T = (tl.load(p_cu + i_n + 1) - bos).to(tl.int32)
    i_s = tl.load(p_slots + i_n).to(tl.int64)
    is_kept = (i_s >= 0) & (tl.load(p_kept + i_n) != 0)
    o_t = i_t * BT + tl.arange(0, BT)
    m_t = o_t < T
    b_y = tl.zeros([BT, BC], dtype=tl.float32)
    for i in tl.static_range(4):
        o_u = o_t - 3 + i
        m_new = ((o_u >= 0) & m_t)[:, None] & m_c[None, :]
        m_old = ((o_u < 0) & m_t & is_kept)[:, None] & m_c[None, :]
        b_x = tl.load(p_x + (bos + o_u)[:, None] * s_x + o_c[None, :], mask=m_new, other=0.0).to(tl.float32)
        p_old = p_pool + i_s * s_pool + o_c[None, :] * 3 + (o_u + 3)[:, None]
        b_x += tl.load(p_old, mask=m_old, other=0.0).to(tl.float32)
        b_w = tl.load(p_w + o_c * 4 + i, mask=m_c, other=0.0).to(tl.float32)
        b_y += b_x * b_w[None, :]
    p_out = p_y + (bos + o_t)[:, None] * C + o_c[None, :]
    tl.store(p_out, cast(silu(b_y), p_y.dtype.element_ty), mask=m_t[:, None] & m_c[None, :])


@triton.jit
def conv1d_state_kernel(p_x, p_pool, p_slots, p_kept, p_cu, s_x, s_pool, C: tl.constexpr, BC: tl.constexpr):
    """The last three raw inputs of each sequence into the pool; a launch of its own, after every program has read it.

    Grid (B * cdiv(C, BC),).
    """
    NC: tl.constexpr = (C + BC - 1) // BC
    i_n = tl.program_id(0) // NC
    o_c = (tl.program_id(0) % NC) * BC + tl.arange(0, BC)
    m_c = o_c < C
    i_s = tl.load(p_slots + i_n).to(tl.int64)
    if i_s < 0:
        return
    is_kept = tl.load(p_kept + i_n) != 0
    bos = tl.load(p_cu + i_n).to(tl.int64)
    T = tl.load(p_cu + i_n + 1) - bos
    p_s = p_pool + i_s * s_pool + o_c * 3
    b_0 = tl.load(p_s, mask=m_c & is_kept, other=0.0)
    b_1 = tl.load(p_s + 1, mask=m_c & is_kept, other=0.0)
    b_2 = tl.load(p_s + 2, mask=m_c & is_kept, other=0.0)
    p_end = p_x + (bos + T) * s_x + o_c
    b_x0 = cast(tl.load(p_end - 3 * s_x, mask=m_c & (T > 2), other=0.0), b_0.dtype)
    b_x1 = cast(tl.load(p_end - 2 * s_x, mask=m_c & (T > 1), other=0.0), b_0.dtype)
    b_x2 = cast(tl.load(p_end - s_x, mask=m_c & (T > 0), other=0.0), b_0.dtype)
    tl.store(p_s, tl.where(T > 2, b_x0, tl.where(T > 1, b_2, tl.where(T > 0, b_1, b_0))), mask=m_c)
    tl.store(p_s + 1, tl.where(T > 1, b_x1, tl.where(T > 0, b_2, b_1)), mask=m_c)
    tl.store(p_s + 2, tl.where(T > 0, b_x2, b_2), mask=m_c)


@triton.jit
def conv1d_update_kernel(p_x, p_w, p_pool, p_slots, p_kept, p_y, s_x, s_pool, C: tl.constexpr, BC: tl.constexpr):
    """One token per sequence, its history shifted in place. Grid (B * cdiv(C, BC),)."""
    NC: tl.constexpr = (C + BC - 1) // BC
    i_n = (tl.program_id(0) // NC).to(tl.int64)
    o_c = (tl.program_id(0) % NC) * BC + tl.arange(0, BC)
    m_c = o_c < C
    i_s = tl.load(p_slots + i_n).to(tl.int64)
    if i_s < 0:
        tl.store(p_y + i_n * C + o_c, cast(tl.zeros([BC], dtype=tl.float32), p_y.dtype.element_ty), mask=m_c)
        return
    m_old = m_c & (tl.load(p_kept + i_n) != 0)
    p_s = p_pool + i_s * s_pool + o_c * 3
    b_0 = tl.load(p_s, mask=m_old, other=0.0)
    b_1 = tl.load(p_s + 1, mask=m_old, other=0.0)
    b_2 = tl.load(p_s + 2, mask=m_old, other=0.0)
    b_x = tl.load(p_x + i_n * s_x + o_c, mask=m_c, other=0.0)
    b_y = b_0.to(tl.float32) * tl.load(p_w + o_c * 4, mask=m_c, other=0.0).to(tl.float32)
    b_y += b_1.to(tl.float32) * tl.load(p_w + o_c * 4 + 1, mask=m_c, other=0.0).to(tl.float32)
    b_y += b_2.to(tl.float32) * tl.load(p_w + o_c * 4 + 2, mask=m_c, other=0.0).to(tl.float32)
    b_y += b_x.to(tl.float32) * tl.load(p_w + o_c * 4 + 3, mask=m_c, other=0.0).to(tl.float32)
    tl.store(p_y + i_n * C + o_c, cast(silu(b_y), p_y.dtype.element_ty), mask=m_c)
    tl.store(p_s, b_1, mask=m_c)
    tl.store(p_s + 1, b_2, mask=m_c)
    tl.store(p_s + 2, cast(b_x, b_0.dtype), mask=m_c)


@triton.jit
def conv1d_verify_kernel(
    p_x, p_w, p_pool, p_slots, p_kept, p_parents, p_cu, p_y, s_x, s_pool, C: tl.constexpr, BC: tl.constexpr
):
    """The drafts of one sequence, each along its ancestors; reads the pool only. Grid (B * cdiv(C, BC),)."""
    NC: tl.constexpr = (C + BC - 1) // BC
    i_n = tl.program_id(0) // NC
    o_c = (tl.program_id(0) % NC) * BC + tl.arange(0, BC)
    m_c = o_c < C
    bos = tl.load(p_cu + i_n).to(tl.int64)
    T = (tl.load(p_cu + i_n + 1) - bos).to(tl.int32)
    i_s = tl.load(p_slots + i_n).to(tl.int64)
    is_kept = (i_s >= 0) & (tl.load(p_kept + i_n) != 0)
    p_s = p_pool + i_s * s_pool + o_c * 3
    for i_t in range(T):
        # Ancestors inside the sequence have indices from 0; -1, -2, -3 are the history, newest first.
        i_1 = tl.load(p_parents + bos + i_t).to(tl.int32)
        i_2 = tl.load(p_parents + bos + i_1, mask=i_1 >= 0, other=0).to(tl.int32)
        i_2 = tl.where(i_1 >= 0, i_2, i_1 - 1)
        i_3 = tl.load(p_parents + bos + i_2, mask=i_2 >= 0, other=0).to(tl.int32)
        i_3 = tl.where(i_2 >= 0, i_3, i_2 - 1)
        b_0 = tl.load(p_x + (bos + i_3) * s_x + o_c, mask=m_c & (i_3 >= 0), other=0.0).to(tl.float32)
        b_0 += tl.load(p_s + 3 + i_3, mask=m_c & (i_3 < 0) & is_kept, other=0.0).to(tl.float32)
        b_1 = tl.load(p_x + (bos + i_2) * s_x + o_c, mask=m_c & (i_2 >= 0), other=0.0).to(tl.float32)
        b_1 += tl.load(p_s + 3 + i_2, mask=m_c & (i_2 < 0) & is_kept, other=0.0).to(tl.float32)
        b_2 = tl.load(p_x + (bos + i_1) * s_x + o_c, mask=m_c & (i_1 >= 0), other=0.0).to(tl.float32)
        b_2 += tl.load(p_s + 3 + i_1, mask=m_c & (i_1 < 0) & is_kept, other=0.0).to(tl.float32)
        b_3 = tl.load(p_x + (bos + i_t) * s_x + o_c, mask=m_c, other=0.0).to(tl.float32)
        b_y = b_0 * tl.load(p_w + o_c * 4, mask=m_c, other=0.0).to(tl.float32)
        b_y += b_1 * tl.load(p_w + o_c * 4 + 1, mask=m_c, other=0.0).to(tl.float32)
        b_y += b_2 * tl.load(p_w + o_c * 4 + 2, mask=m_c, other=0.0).to(tl.float32)
        b_y += b_3 * tl.load(p_w + o_c * 4 + 3, mask=m_c, other=0.0).to(tl.float32)
        tl.store(p_y + (bos + i_t) * C + o_c, cast(silu(b_y), p_y.dtype.element_ty), mask=m_c)
