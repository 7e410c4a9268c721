"""Packed tokens as tiles of 64, and back."""

from __future__ import annotations

import torch

from gpu_runner.gdn.ops.plan import ChunkPlan
from gpu_runner.gdn.ops.reference.rounding import wide


def tiles(x: torch.Tensor, plan: ChunkPlan) -> torch.Tensor:
    """Packed [N, H, ...] as [chunks, H, 64, ...] in at least float32; places past a sequence's end are zero."""
    mask = plan.valid.reshape(*plan.valid.shape, *[1] * (x.dim() - 1))
    # where, not a product: a padded place may alias a row that holds infinities.
    return torch.where(mask, wide(x[plan.rows]), 0).transpose(1, 2)


def untile(x: torch.Tensor, out: torch.Tensor, plan: ChunkPlan) -> torch.Tensor:
    """`out`, whose packed rows [N, H, ...] now hold the valid places of x [chunks, H, 64, ...]."""
    out[plan.rows[plan.valid]] = x.transpose(1, 2)[plan.valid].to(out.dtype)
    return out


def decay_ratios(g_cum: torch.Tensor, offset: int) -> torch.Tensor:
    """exp(G_i - G_j) where i + offset >= j, else 0; g_cum [chunks, Hv, 64].

    G falls, so that the wanted differences are never positive; the others would overflow, and are cut before exp.
    """
    difference = g_cum[..., :, None] - g_cum[..., None, :]
    return difference.clamp(max=0).exp().tril(offset)
