"""In which dtype the hand path computes, and the functions whose last bit does not depend on the batch."""

from __future__ import annotations

import torch

SOFTPLUS_LINEAR_ABOVE = 20.0


def wide(x: torch.Tensor) -> torch.Tensor:
    """X in float32 (or float64, where it is that), contiguous: what arithmetic is done in, whatever is stored.

    Contiguous, because on a CPU exp and its kin give other last bits where the elements are strided.
    """
    return (x if x.dtype == torch.float64 else x.float()).contiguous()


def rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """X after one trip through the storage dtype, back in `x`'s own: where the kernels round between stages."""
    return x.to(dtype).to(x.dtype)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """1 / (1 + exp(-x)), each element on its own.

    torch.sigmoid, silu and softplus run the last elements of a CPU tensor through scalar code whose last bit differs
    from their vector code, so that a row's result depends on how many rows stand before it; torch.exp does not.
    """
    return 1 / (1 + (-x).exp())


def silu(x: torch.Tensor) -> torch.Tensor:
    """X * sigmoid(x), each element on its own."""
    return x / (1 + (-x).exp())


def softplus(x: torch.Tensor) -> torch.Tensor:
    """log(1 + exp(x)), and x itself above 20, each element on its own."""
    return torch.where(x > SOFTPLUS_LINEAR_ABOVE, x, x.clamp(max=SOFTPLUS_LINEAR_ABOVE).exp().log1p())
