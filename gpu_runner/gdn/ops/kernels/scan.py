"""The scan over chunks, and the outputs from the states it leaves."""

# ruff: noqa: ANN001, ANN201, D403 - Triton compiles these: parameters have no Python types.
from __future__ import annotations

import triton
import triton.language as tl

from gpu_runner.gdn.ops.kernels.shared import cast, dot


@triton.jit
def delta_h_kernel(
    p_k, p_w, p_u, p_g, p_v_new, p_h, p_pool, p_slots, p_kept, p_rows, p_snapshots, p_cu, p_first, s_k, s_pool,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, KP: tl.constexpr, BV: tl.constexpr,
    BT: tl.constexpr, SNAPSHOT: tl.constexpr,
):  # fmt: skip
    """Scan over the chunks of one sequence for BV value rows of one head, the final state into its slot.

    h[chunk] = state before it; v_new = u - w S^T; where p_rows[chunk] >= 0 the state before it also goes, in float32,
    to that snapshot. The state is held as S^T [K, BV], so that no result of a dot is transposed into another one.
    Grid (cdiv(V, BV) * B * HV,).
    """
    NV: tl.constexpr = (V + BV - 1) // BV
    i_v = tl.program_id(0) % NV
    i_nh = tl.program_id(0) // NV
    i_n = i_nh // HV
    i_h = i_nh % HV
    bos = tl.load(p_cu + i_n).to(tl.int64)
    T = (tl.load(p_cu + i_n + 1) - bos).to(tl.int32)
    boh = tl.load(p_first + i_n).to(tl.int64)
    i_s = tl.load(p_slots + i_n).to(tl.int64)
    is_kept = (i_s >= 0) & (tl.load(p_kept + i_n) != 0)
    o_r = tl.arange(0, BT)
    o_k = tl.arange(0, KP)
    o_v = i_v * BV + tl.arange(0, BV)
    m_k = o_k < K
    m_v = o_v < V
    m_S = m_k[:, None] & m_v[None, :]
    o_S = i_h * V * K + o_v[None, :] * K + o_k[:, None]
    b_S = tl.load(p_pool + i_s * s_pool + o_S, mask=m_S & is_kept, other=0.0).to(tl.float32)
    p_k += bos * s_k + (i_h // (HV // H)) * K
    p_w += (bos * HV + i_h) * K
    p_u += (bos * HV + i_h) * V
    p_v_new += (bos * HV + i_h) * V
    p_g += bos * HV + i_h
    for i_t in range(tl.cdiv(T, BT)):
        tl.store(p_h + (boh + i_t) * HV * V * K + o_S, cast(b_S, p_h.dtype.element_ty), mask=m_S)
        if SNAPSHOT:
            i_row = tl.load(p_rows + boh + i_t).to(tl.int64)
            tl.store(p_snapshots + i_row * HV * V * K + o_S, b_S, mask=m_S & (i_row >= 0))
        o_t = i_t * BT + o_r
        m_t = o_t < T
        m_tk = m_t[:, None] & m_k[None, :]
        m_tv = m_t[:, None] & m_v[None, :]
        b_w = tl.load(p_w + o_t[:, None] * (HV * K) + o_k[None, :], mask=m_tk, other=0.0)
        b_u = tl.load(p_u + o_t[:, None] * (HV * V) + o_v[None, :], mask=m_tv, other=0.0).to(tl.float32)
        b_vn = b_u - dot(b_w, cast(b_S, b_w.dtype))
        tl.store(p_v_new + o_t[:, None] * (HV * V) + o_v[None, :], cast(b_vn, p_v_new.dtype.element_ty), mask=m_tv)
        b_g = tl.load(p_g + o_t * HV, mask=m_t, other=0.0)
        b_gl = tl.load(p_g + (tl.minimum((i_t + 1) * BT, T) - 1) * HV)
        b_vn *= tl.where(m_t, tl.exp(tl.minimum(b_gl - b_g, 0.0)), 0.0)[:, None]
        b_k = tl.load(p_k + o_t[None, :] * s_k + o_k[:, None], mask=m_k[:, None] & m_t[None, :], other=0.0)
        b_S = b_S * tl.exp(b_gl) + dot(b_k, cast(b_vn, b_k.dtype))
    tl.store(p_pool + i_s * s_pool + o_S, cast(b_S, p_pool.dtype.element_ty), mask=m_S & (i_s >= 0))


@triton.jit
def chunk_o_kernel(
    p_q, p_k, p_v_new, p_h, p_g, p_o, p_cu, p_chunks, s_q, s_k, H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr,
    V: tl.constexpr, KP: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """o = scale ((q S^T) exp(G) + tril((q k^T) exp(G_i - G_j)) v_new) of one chunk, one head and BV value columns.

    Grid (cdiv(V, BV) * chunks * HV,).
    """
    NV: tl.constexpr = (V + BV - 1) // BV
    i_v = tl.program_id(0) % NV
    i_ch = tl.program_id(0) // NV
    i_c = (i_ch // HV).to(tl.int64)
    i_h = i_ch % HV
    i_k = i_h // (HV // H)
    i_n = tl.load(p_chunks + 2 * i_c)
    i_t = tl.load(p_chunks + 2 * i_c + 1)
    bos = tl.load(p_cu + i_n).to(tl.int64)
    T = (tl.load(p_cu + i_n + 1) - bos).to(tl.int32)
    o_r = tl.arange(0, BT)
    o_t = i_t * BT + o_r
    m_t = o_t < T
    o_k = tl.arange(0, KP)
    o_v = i_v * BV + tl.arange(0, BV)
    m_k = o_k < K
    m_v = o_v < V
    p_q += bos * s_q + i_k * K
    p_k += bos * s_k + i_k * K
    o_i = bos * HV + o_t * HV + i_h
    b_q = tl.load(p_q + o_t[:, None] * s_q + o_k[None, :], mask=m_t[:, None] & m_k[None, :], other=0.0)
    b_k = tl.load(p_k + o_t[None, :] * s_k + o_k[:, None], mask=m_k[:, None] & m_t[None, :], other=0.0)
    p_S = p_h + (i_c * HV + i_h) * V * K + o_v[None, :] * K + o_k[:, None]
    b_S = tl.load(p_S, mask=m_k[:, None] & m_v[None, :], other=0.0)
    b_g = tl.load(p_g + o_i, mask=m_t, other=0.0)
    b_o = dot(b_q, b_S) * tl.exp(b_g)[:, None]
    # Wanted differences of G are never positive; the others are cut before exp, where they would overflow.
    b_d = tl.exp(tl.minimum(b_g[:, None] - b_g[None, :], 0.0))
    b_P = tl.where(o_r[:, None] >= o_r[None, :], dot(b_q, b_k) * b_d, 0.0)
    m_tv = m_t[:, None] & m_v[None, :]
    b_v = tl.load(p_v_new + o_i[:, None] * V + o_v[None, :], mask=m_tv, other=0.0)
    b_o = b_o * SCALE + dot(cast(b_P, b_v.dtype), b_v) * SCALE
    tl.store(p_o + o_i[:, None] * V + o_v[None, :], cast(b_o, p_o.dtype.element_ty), mask=m_tv)
