"""The dtype in which the hand path computes."""

from __future__ import annotations

import torch


def wide(x: torch.Tensor) -> torch.Tensor:
    """X in float32 (or float64, where it is that), contiguous: what arithmetic is done in, whatever is stored.

    Contiguous, because on a CPU exp and its kin give other last bits where the elements are strided.
    """
    return (x if x.dtype == torch.float64 else x.float()).contiguous()


def rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """X after one trip through the storage dtype, back in `x`'s own: where the kernels round between stages."""
    return x.to(dtype).to(x.dtype)
