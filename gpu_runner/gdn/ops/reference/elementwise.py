"""Operators that look at one token at a time: gates, l2 norm, gated RMS norm."""

# ruff: noqa: ARG001 - every realization is called alike, with its context.
from __future__ import annotations

import torch

from gpu_runner.gdn.ops.reference.rounding import sigmoid, silu, softplus, wide
from gpu_runner.gdn.registry import OpCtx


def decay_and_beta(
    a: torch.Tensor, b: torch.Tensor, A_log: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log decay g <= 0 and beta in (0, 1), both at least float32, of the shape of `a`."""
    x = wide(a) + wide(dt_bias)
    g = -wide(A_log).exp() * softplus(x)
    return g, sigmoid(wide(b))


def gating(
    a: torch.Tensor, b: torch.Tensor, A_log: torch.Tensor, dt_bias: torch.Tensor, *, ctx: OpCtx
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `ops.calls.gating`."""
    return decay_and_beta(a, b, A_log, dt_bias)


def l2norm(x: torch.Tensor, eps: float, *, ctx: OpCtx) -> torch.Tensor:
    """See `ops.calls.l2norm`."""
    return normalised(wide(x), eps).to(x.dtype)


def normalised(x: torch.Tensor, eps: float) -> torch.Tensor:
    """X / sqrt(sum(x^2) + eps) over the last axis, in the dtype of `x`."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + eps)


def rmsnorm_gated(o: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float, *, ctx: OpCtx) -> torch.Tensor:
    """See `ops.calls.rmsnorm_gated`."""
    x = wide(o)
    x = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * wide(weight)
    return (x * silu(wide(z))).to(o.dtype)
