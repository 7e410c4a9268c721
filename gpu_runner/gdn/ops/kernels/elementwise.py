"""Kernels that look at one token at a time."""

# ruff: noqa: ANN001, ANN201, D403 - Triton compiles these: parameters have no Python types.
from __future__ import annotations

import triton
import triton.language as tl

from gpu_runner.gdn.ops.kernels.shared import cast, silu, softplus


@triton.jit
def gating_kernel(p_a, p_b, p_A_log, p_dt_bias, p_g, p_beta, s_a, s_b, N, HV: tl.constexpr, BLOCK: tl.constexpr):
    """g and beta of BLOCK consecutive (token, head) pairs. Grid (cdiv(N * HV, BLOCK),)."""
    o_i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m_i = o_i < N * HV
    i_t = o_i // HV
    i_h = o_i % HV
    b_x = tl.load(p_a + i_t * s_a + i_h, mask=m_i, other=0.0).to(tl.float32)
    b_x += tl.load(p_dt_bias + i_h, mask=m_i, other=0.0).to(tl.float32)
    b_A = tl.exp(tl.load(p_A_log + i_h, mask=m_i, other=0.0).to(tl.float32))
    b_b = tl.load(p_b + i_t * s_b + i_h, mask=m_i, other=0.0).to(tl.float32)
    tl.store(p_g + o_i, -b_A * softplus(b_x), mask=m_i)
    tl.store(p_beta + o_i, 1.0 / (1.0 + tl.exp(-b_b)), mask=m_i)


@triton.jit
def l2norm_kernel(p_x, p_y, s_x, rows, eps, H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BR: tl.constexpr):
    """y = x / sqrt(sum(x^2) + eps) for BR (token, head) rows. Grid (cdiv(rows, BR),)."""
    o_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    o_d = tl.arange(0, DP)
    m = (o_r < rows)[:, None] & (o_d < D)[None, :]
    p_row = p_x + (o_r // H) * s_x + (o_r % H) * D
    b_x = tl.load(p_row[:, None] + o_d[None, :], mask=m, other=0.0).to(tl.float32)
    b_y = b_x * tl.rsqrt(tl.sum(b_x * b_x, axis=1) + eps)[:, None]
    tl.store(p_y + o_r[:, None] * D + o_d[None, :], cast(b_y, p_y.dtype.element_ty), mask=m)


@triton.jit
def rmsnorm_gated_kernel(
    p_x, p_z, p_w, p_y, s_x, s_z, rows, eps, H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BR: tl.constexpr
):
    """y = x / sqrt(mean(x^2) + eps) * w * silu(z) for BR (token, head) rows. Grid (cdiv(rows, BR),)."""
    o_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    o_d = tl.arange(0, DP)
    m_d = o_d < D
    m = (o_r < rows)[:, None] & m_d[None, :]
    i_t = o_r // H
    i_h = o_r % H
    b_x = tl.load(p_x + (i_t * s_x + i_h * D)[:, None] + o_d[None, :], mask=m, other=0.0).to(tl.float32)
    b_z = tl.load(p_z + (i_t * s_z + i_h * D)[:, None] + o_d[None, :], mask=m, other=0.0).to(tl.float32)
    b_w = tl.load(p_w + o_d, mask=m_d, other=0.0).to(tl.float32)
    b_y = b_x * tl.rsqrt(tl.sum(b_x * b_x, axis=1) / D + eps)[:, None] * b_w[None, :] * silu(b_z)
    tl.store(p_y + o_r[:, None] * D + o_d[None, :], cast(b_y, p_y.dtype.element_ty), mask=m)
