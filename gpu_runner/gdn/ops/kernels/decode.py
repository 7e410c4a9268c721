"""The recurrent form: decode, and verification of drafts."""

# ruff: noqa: ANN001, ANN201, ANN202 - Triton compiles these: parameters have no Python types.
from __future__ import annotations

import triton
import triton.language as tl

from gpu_runner.gdn.ops.kernels.shared import cast, softplus


@triton.jit
def _step(
    p_row, p_a, p_b, p_A_log, p_dt_bias, b_S, i_hv, i_h, o_k, m_k, o_v, m_v, H: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """Output and new state [BV, KP] after one token: gates, l2 norms, update.

    One pass over the old state: k.S and q.S are both taken from it, and o = decay (q.S) + (q.k) d.
    """
    b_q = tl.load(p_row + i_h * K + o_k, mask=m_k, other=0.0).to(tl.float32)
    b_k = tl.load(p_row + H * K + i_h * K + o_k, mask=m_k, other=0.0).to(tl.float32)
    b_v = tl.load(p_row + 2 * H * K + i_hv * V + o_v, mask=m_v, other=0.0).to(tl.float32)
    b_q = b_q * (tl.rsqrt(tl.sum(b_q * b_q, axis=0) + 1e-6) * SCALE)
    b_k = b_k * tl.rsqrt(tl.sum(b_k * b_k, axis=0) + 1e-6)
    b_x = tl.load(p_a + i_hv).to(tl.float32) + tl.load(p_dt_bias + i_hv).to(tl.float32)
    b_decay = tl.exp(-tl.exp(tl.load(p_A_log + i_hv).to(tl.float32)) * softplus(b_x))
    b_beta = 1.0 / (1.0 + tl.exp(-tl.load(p_b + i_hv).to(tl.float32)))
    b_d = b_beta * (b_v - b_decay * tl.sum(b_S * b_k[None, :], axis=1))
    b_o = b_decay * tl.sum(b_S * b_q[None, :], axis=1) + tl.sum(b_q * b_k, axis=0) * b_d
    return b_o, b_S * b_decay + b_d[:, None] * b_k[None, :]


@triton.jit
def packed_decode_kernel(
    p_mixed, p_a, p_b, p_A_log, p_dt_bias, p_o, p_pool, p_slots, p_kept, s_mixed, s_a, s_b, s_pool, H: tl.constexpr,
    HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, KP: tl.constexpr, BV: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """One token of one sequence for BV value rows of one head, the state in place. Grid (cdiv(V, BV) * B * HV,)."""
    NV: tl.constexpr = (V + BV - 1) // BV
    i_v = tl.program_id(0) % NV
    i_nh = tl.program_id(0) // NV
    i_n = (i_nh // HV).to(tl.int64)
    i_hv = i_nh % HV
    o_k = tl.arange(0, KP)
    o_v = i_v * BV + tl.arange(0, BV)
    m_k = o_k < K
    m_v = o_v < V
    p_out = p_o + (i_n * HV + i_hv) * V + o_v
    i_s = tl.load(p_slots + i_n).to(tl.int64)
    if i_s < 0:
        tl.store(p_out, cast(tl.zeros([BV], dtype=tl.float32), p_o.dtype.element_ty), mask=m_v)
        return
    p_S = p_pool + i_s * s_pool + i_hv * V * K + o_v[:, None] * K + o_k[None, :]
    m_S = m_v[:, None] & m_k[None, :]
    is_kept = tl.load(p_kept + i_n) != 0
    b_S = tl.load(p_S, mask=m_S & is_kept, other=0.0).to(tl.float32)
    b_o, b_S = _step(
        p_mixed + i_n * s_mixed, p_a + i_n * s_a, p_b + i_n * s_b, p_A_log, p_dt_bias, b_S, i_hv,
        i_hv // (HV // H), o_k, m_k, o_v, m_v, H, K, V, SCALE,
    )  # fmt: skip
    tl.store(p_out, cast(b_o, p_o.dtype.element_ty), mask=m_v)
    tl.store(p_S, cast(b_S, p_pool.dtype.element_ty), mask=m_S)


@triton.jit
def verify_decode_kernel(
    p_mixed, p_a, p_b, p_A_log, p_dt_bias, p_o, p_snapshots, p_pool, p_slots, p_kept, p_parents, p_cu, s_mixed, s_a,
    s_b, s_pool, H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, KP: tl.constexpr,
    BV: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """The drafts of one sequence for BV value rows of one head, each from its parent's state.

    Reads the pool only; the state after each draft goes to its snapshot. Grid (cdiv(V, BV) * B * HV,).
    """
    NV: tl.constexpr = (V + BV - 1) // BV
    i_v = tl.program_id(0) % NV
    i_nh = tl.program_id(0) // NV
    i_n = i_nh // HV
    i_hv = i_nh % HV
    o_k = tl.arange(0, KP)
    o_v = i_v * BV + tl.arange(0, BV)
    m_k = o_k < K
    m_v = o_v < V
    m_S = m_v[:, None] & m_k[None, :]
    o_S = i_hv * V * K + o_v[:, None] * K + o_k[None, :]
    bos = tl.load(p_cu + i_n).to(tl.int64)
    T = (tl.load(p_cu + i_n + 1) - bos).to(tl.int32)
    i_s = tl.load(p_slots + i_n).to(tl.int64)
    is_kept = (i_s >= 0) & (tl.load(p_kept + i_n) != 0)
    for i_t in range(T):
        i_row = bos + i_t
        p_out = p_o + (i_row * HV + i_hv) * V + o_v
        i_p = tl.load(p_parents + i_row).to(tl.int64)
        b_S = tl.load(p_pool + i_s * s_pool + o_S, mask=m_S & is_kept & (i_p < 0), other=0.0).to(tl.float32)
        b_S += tl.load(p_snapshots + (bos + i_p) * HV * V * K + o_S, mask=m_S & (i_p >= 0), other=0.0)
        b_o, b_S = _step(
            p_mixed + i_row * s_mixed, p_a + i_row * s_a, p_b + i_row * s_b, p_A_log, p_dt_bias, b_S, i_hv,
            i_hv // (HV // H), o_k, m_k, o_v, m_v, H, K, V, SCALE,
        )  # fmt: skip
        b_live = tl.where(i_s >= 0, 1.0, 0.0)
        tl.store(p_out, cast(b_o * b_live, p_o.dtype.element_ty), mask=m_v)
        tl.store(p_snapshots + i_row * HV * V * K + o_S, b_S * b_live, mask=m_S)
        # A later draft reads this snapshot, perhaps in another thread.
        tl.debug_barrier()
