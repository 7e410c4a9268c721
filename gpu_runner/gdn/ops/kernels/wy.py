"""The WY form of each chunk: cumulated decay, the inverse (I + L)^-1, and w, u."""

# ruff: noqa: ANN001, ANN201, ANN202, D403 - Triton compiles these: parameters have no Python types.
from __future__ import annotations

import triton
import triton.language as tl

from gpu_runner.gdn.ops.kernels.shared import cast, dot


@triton.jit
def cumsum_kernel(p_g, p_out, p_cu, p_chunks, HV: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr):
    """Inclusive sums of g inside one chunk for BH heads. Grid (chunks * cdiv(HV, BH),)."""
    NH: tl.constexpr = (HV + BH - 1) // BH
    i_c = tl.program_id(0) // NH
    o_h = (tl.program_id(0) % NH) * BH + tl.arange(0, BH)
    i_n = tl.load(p_chunks + 2 * i_c)
    i_t = tl.load(p_chunks + 2 * i_c + 1)
    bos = tl.load(p_cu + i_n)
    eos = tl.load(p_cu + i_n + 1)
    o_t = bos + i_t * BT + tl.arange(0, BT)
    m = (o_t < eos)[:, None] & (o_h < HV)[None, :]
    o_i = o_t.to(tl.int64)[:, None] * HV + o_h[None, :]
    b_g = tl.load(p_g + o_i, mask=m, other=0.0)
    tl.store(p_out + o_i, tl.cumsum(b_g, axis=0), mask=m)


@triton.jit
def _lower(b_ki, b_kj, b_gi, b_gj, b_beta):
    """The 16x16 block of L between the rows of k_i and the columns of k_j.

    Wanted differences of G are never positive; the others are cut before exp, where they would overflow.
    """
    b_d = tl.minimum(b_gi[:, None] - b_gj[None, :], 0.0)
    return dot(b_ki, tl.trans(b_kj)) * tl.exp(b_d) * b_beta[:, None]


@triton.jit
def _inverses(b_L0, b_L1, b_L2, b_L3):
    """(I + L)^-1 of four 16x16 blocks at once, [4, 16, 16], by forward substitution; below the diagonal counts."""
    i_b = tl.arange(0, 4)[:, None, None]
    o_r = tl.arange(0, 16)[None, :, None]
    o_c = tl.arange(0, 16)[None, None, :]
    b_L = tl.where(i_b < 2, tl.where(i_b < 1, b_L0[None, :, :], b_L1[None, :, :]),
                   tl.where(i_b < 3, b_L2[None, :, :], b_L3[None, :, :]))  # fmt: skip
    b_X = tl.where(o_r > o_c, -b_L, 0.0)
    for i in range(2, 16):
        b_row = tl.sum(tl.where(o_r == i, b_X, 0.0), axis=1)
        # Row i of the inverse from the rows above it; the others meet zeros of b_row.
        b_row += tl.sum(b_row[:, :, None] * b_X, axis=1)
        b_X = tl.where(o_r == i, b_row[:, None, :], b_X)
    return tl.where(o_r == o_c, 1.0, b_X)


@triton.jit
def _block(b_X, i):
    """Block i of [4, 16, 16]."""
    return tl.sum(tl.where(tl.arange(0, 4)[:, None, None] == i, b_X, 0.0), axis=0)


@triton.jit
def kkt_solve_kernel(
    p_k, p_beta, p_g, p_A, p_cu, p_chunks, s_k, H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, KP: tl.constexpr,
    BT: tl.constexpr,
):  # fmt: skip
    """A = (I + L)^-1 of one chunk and value head, from four 16x16 inverses merged block row by block row.

    L[i, j] = beta_i (k_i . k_j) exp(G_i - G_j) for i > j. Writes the ten blocks on and below the diagonal: the six
    above it must hold zeros. Grid (chunks * HV,).
    """
    i_c = (tl.program_id(0) // HV).to(tl.int64)
    i_h = tl.program_id(0) % HV
    i_n = tl.load(p_chunks + 2 * i_c)
    i_t = tl.load(p_chunks + 2 * i_c + 1)
    bos = tl.load(p_cu + i_n).to(tl.int64)
    T = (tl.load(p_cu + i_n + 1) - bos).to(tl.int32)
    o_b = tl.arange(0, 16)
    o_k = tl.arange(0, KP)
    p_k += bos * s_k + (i_h // (HV // H)) * K
    p_beta += bos * HV + i_h
    p_g += bos * HV + i_h

    o_0 = i_t * BT + o_b
    o_1 = o_0 + 16
    o_2 = o_0 + 32
    o_3 = o_0 + 48
    m_k = (o_k < K)[None, :]
    b_k0 = tl.load(p_k + o_0[:, None] * s_k + o_k[None, :], mask=(o_0 < T)[:, None] & m_k, other=0.0)
    b_k1 = tl.load(p_k + o_1[:, None] * s_k + o_k[None, :], mask=(o_1 < T)[:, None] & m_k, other=0.0)
    b_k2 = tl.load(p_k + o_2[:, None] * s_k + o_k[None, :], mask=(o_2 < T)[:, None] & m_k, other=0.0)
    b_k3 = tl.load(p_k + o_3[:, None] * s_k + o_k[None, :], mask=(o_3 < T)[:, None] & m_k, other=0.0)
    b_g0 = tl.load(p_g + o_0 * HV, mask=o_0 < T, other=0.0)
    b_g1 = tl.load(p_g + o_1 * HV, mask=o_1 < T, other=0.0)
    b_g2 = tl.load(p_g + o_2 * HV, mask=o_2 < T, other=0.0)
    b_g3 = tl.load(p_g + o_3 * HV, mask=o_3 < T, other=0.0)
    b_b0 = tl.load(p_beta + o_0 * HV, mask=o_0 < T, other=0.0)
    b_b1 = tl.load(p_beta + o_1 * HV, mask=o_1 < T, other=0.0)
    b_b2 = tl.load(p_beta + o_2 * HV, mask=o_2 < T, other=0.0)
    b_b3 = tl.load(p_beta + o_3 * HV, mask=o_3 < T, other=0.0)

    b_X = _inverses(
        _lower(b_k0, b_k0, b_g0, b_g0, b_b0),
        _lower(b_k1, b_k1, b_g1, b_g1, b_b1),
        _lower(b_k2, b_k2, b_g2, b_g2, b_b2),
        _lower(b_k3, b_k3, b_g3, b_g3, b_b3),
    )
    b_X00 = _block(b_X, 0)
    b_X11 = _block(b_X, 1)
    b_X22 = _block(b_X, 2)
    b_X33 = _block(b_X, 3)
    b_L10 = _lower(b_k1, b_k0, b_g1, b_g0, b_b1)
    b_L20 = _lower(b_k2, b_k0, b_g2, b_g0, b_b2)
    b_L21 = _lower(b_k2, b_k1, b_g2, b_g1, b_b2)
    b_L30 = _lower(b_k3, b_k0, b_g3, b_g0, b_b3)
    b_L31 = _lower(b_k3, b_k1, b_g3, b_g1, b_b3)
    b_L32 = _lower(b_k3, b_k2, b_g3, b_g2, b_b3)
    b_X10 = -dot(b_X11, dot(b_L10, b_X00))
    b_X21 = -dot(b_X22, dot(b_L21, b_X11))
    b_X32 = -dot(b_X33, dot(b_L32, b_X22))
    b_X20 = -dot(b_X22, dot(b_L20, b_X00) + dot(b_L21, b_X10))
    b_X31 = -dot(b_X33, dot(b_L31, b_X11) + dot(b_L32, b_X21))
    b_X30 = -dot(b_X33, dot(b_L30, b_X00) + dot(b_L31, b_X10) + dot(b_L32, b_X20))

    p_A += (i_c * HV + i_h) * BT * BT + o_b[:, None] * BT + o_b[None, :]
    tl.store(p_A, cast(b_X00, p_A.dtype.element_ty))
    tl.store(p_A + 16 * BT, cast(b_X10, p_A.dtype.element_ty))
    tl.store(p_A + 16 * BT + 16, cast(b_X11, p_A.dtype.element_ty))
    tl.store(p_A + 32 * BT, cast(b_X20, p_A.dtype.element_ty))
    tl.store(p_A + 32 * BT + 16, cast(b_X21, p_A.dtype.element_ty))
    tl.store(p_A + 32 * BT + 32, cast(b_X22, p_A.dtype.element_ty))
    tl.store(p_A + 48 * BT, cast(b_X30, p_A.dtype.element_ty))
    tl.store(p_A + 48 * BT + 16, cast(b_X31, p_A.dtype.element_ty))
    tl.store(p_A + 48 * BT + 32, cast(b_X32, p_A.dtype.element_ty))
    tl.store(p_A + 48 * BT + 48, cast(b_X33, p_A.dtype.element_ty))


@triton.jit
def wu_kernel(
    p_k, p_v, p_beta, p_g, p_A, p_w, p_u, p_cu, p_chunks, s_k, s_v, H: tl.constexpr, HV: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """u = A (beta v), w = A (beta exp(G) k) of one chunk and value head. Grid (chunks * HV,)."""
    i_c = (tl.program_id(0) // HV).to(tl.int64)
    i_h = tl.program_id(0) % HV
    i_n = tl.load(p_chunks + 2 * i_c)
    i_t = tl.load(p_chunks + 2 * i_c + 1)
    bos = tl.load(p_cu + i_n).to(tl.int64)
    T = (tl.load(p_cu + i_n + 1) - bos).to(tl.int32)
    o_r = tl.arange(0, BT)
    o_t = i_t * BT + o_r
    m_t = o_t < T
    o_k = tl.arange(0, KP)
    o_v = tl.arange(0, VP)
    m_k = m_t[:, None] & (o_k < K)[None, :]
    m_v = m_t[:, None] & (o_v < V)[None, :]
    o_i = bos * HV + o_t * HV + i_h
    b_A = tl.load(p_A + (i_c * HV + i_h) * BT * BT + o_r[:, None] * BT + o_r[None, :])
    b_beta = tl.load(p_beta + o_i, mask=m_t, other=0.0)
    b_e = tl.exp(tl.load(p_g + o_i, mask=m_t, other=0.0))
    b_v = tl.load(p_v + bos * s_v + i_h * V + o_t[:, None] * s_v + o_v[None, :], mask=m_v, other=0.0)
    b_vb = cast(b_v.to(tl.float32) * b_beta[:, None], b_v.dtype)
    b_u = dot(b_A, b_vb)
    tl.store(p_u + o_i[:, None] * V + o_v[None, :], cast(b_u, p_u.dtype.element_ty), mask=m_v)
    p_key = p_k + bos * s_k + (i_h // (HV // H)) * K
    b_k = tl.load(p_key + o_t[:, None] * s_k + o_k[None, :], mask=m_k, other=0.0)
    b_kb = cast(b_k.to(tl.float32) * (b_beta * b_e)[:, None], b_k.dtype)
    b_w = dot(b_A, b_kb)
    tl.store(p_w + o_i[:, None] * K + o_k[None, :], cast(b_w, p_w.dtype.element_ty), mask=m_k)
