"""Matrix products and norms of the model, with a form whose rows do not depend on their company."""

from __future__ import annotations

import torch
from torch.nn import functional


def linear(x: torch.Tensor, weight: torch.Tensor, *, is_row_stable: bool) -> torch.Tensor:
    """The product x @ weight.T for x [N, in] and weight [out, in].

    A library picks tiles, and so the order of its sums, by N. With `is_row_stable` every row is a product of its
    own: the bits of a row are the same in any batch, which deterministic mode needs.
    """
    if not is_row_stable:
        return functional.linear(x, weight)
    out = x.new_empty(x.shape[0], weight.shape[0])
    for row in range(x.shape[0]):
        torch.mv(weight, x[row], out=out[row])
    return out


def zero_centred_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The norm x / sqrt(mean(x^2) + eps) * (1 + weight) over the last dimension, computed in float32, in x's dtype.

    Source: transformers 5.23.0, `Qwen3NextRMSNorm`.
    """
    values = x.float()
    values = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + eps)
    return (values * (1.0 + weight.float())).to(x.dtype)
