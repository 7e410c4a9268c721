"""Launches of the kernels that look at one token at a time."""

from __future__ import annotations

import torch

from gpu_runner.gdn.ops.modules import KERNELS, padded
from gpu_runner.gdn.ops.tiles import tile
from gpu_runner.gdn.registry import OpCtx

GATING_BLOCK = 1024
L2NORM_ROWS = 32
RMSNORM_ROWS = 8


def gating(
    a: torch.Tensor, b: torch.Tensor, A_log: torch.Tensor, dt_bias: torch.Tensor, *, ctx: OpCtx
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `ops.calls.gating`."""
    del ctx
    N, HV = a.shape
    g = torch.empty(N, HV, dtype=torch.float32, device=a.device)
    beta = torch.empty_like(g)
    KERNELS.launch(
        "gating", (-(-N * HV // GATING_BLOCK),), tile("gating"),
        a, b, A_log, dt_bias, g, beta, a.stride(0), b.stride(0), N, HV=HV, BLOCK=GATING_BLOCK,
    )  # fmt: skip
    return g, beta


def l2norm(x: torch.Tensor, eps: float, *, ctx: OpCtx) -> torch.Tensor:
    """See `ops.calls.l2norm`."""
    del ctx
    N, H, D = x.shape
    y = torch.empty(N, H, D, dtype=x.dtype, device=x.device)
    KERNELS.launch(
        "l2norm", (-(-N * H // L2NORM_ROWS),), tile("l2norm"),
        x, y, x.stride(0), N * H, eps, H=H, D=D, DP=padded(D), BR=L2NORM_ROWS,
    )  # fmt: skip
    return y


def rmsnorm_gated(o: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float, *, ctx: OpCtx) -> torch.Tensor:
    """See `ops.calls.rmsnorm_gated`."""
    del ctx
    N, H, D = o.shape
    y = torch.empty(N, H, D, dtype=o.dtype, device=o.device)
    KERNELS.launch(
        "rmsnorm_gated", (-(-N * H // RMSNORM_ROWS),), tile("rmsnorm_gated"),
        o, z, weight, y, o.stride(0), z.stride(0), N * H, eps, H=H, D=D, DP=padded(D), BR=RMSNORM_ROWS,
    )  # fmt: skip
    return y
