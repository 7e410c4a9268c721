"""The feed-forward half of a layer: dense, or a sparse mixture of experts beside a shared one."""

from __future__ import annotations

import torch

from gpu_runner.gdn.config import ModelConfig
from gpu_runner.gdn.linear import linear
from gpu_runner.gdn.ops.reference.rounding import sigmoid, silu, wide
from gpu_runner.gdn.weights import DenseMlp, SparseMlp


def feed_forward(
    x: torch.Tensor, weights: DenseMlp | SparseMlp, config: ModelConfig, *, is_row_stable: bool
) -> torch.Tensor:
    """The MLP of one layer for x [N, hidden]."""
    if isinstance(weights, DenseMlp):
        return _gated(x, weights.gate_up, weights.down, is_row_stable=is_row_stable)
    return _mixture(x, weights, config, is_row_stable=is_row_stable)


def _gated(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, *, is_row_stable: bool) -> torch.Tensor:
    gate, up = linear(x, gate_up, is_row_stable=is_row_stable).chunk(2, dim=-1)
    return linear(silu(wide(gate)).to(x.dtype) * up, down, is_row_stable=is_row_stable)


def _mixture(x: torch.Tensor, weights: SparseMlp, config: ModelConfig, *, is_row_stable: bool) -> torch.Tensor:
    """Source: transformers 5.23.0, `Qwen3NextSparseMoeBlock`.

    Experts are visited in ascending order, so that a token's sum has one order in any batch.
    """
    scores = linear(x, weights.router, is_row_stable=is_row_stable).softmax(-1, dtype=torch.float32)
    factors, chosen = scores.topk(config.num_experts_per_tok, dim=-1)
    if config.norm_topk_prob:
        factors = factors / factors.sum(-1, keepdim=True)
    factors = factors.to(x.dtype)
    out = torch.zeros_like(x)
    for expert in chosen.unique().tolist():
        tokens, rank = torch.where(chosen == expert)
        part = _gated(x[tokens], weights.gate_up[expert], weights.down[expert], is_row_stable=is_row_stable)
        out.index_add_(0, tokens, part * factors[tokens, rank, None])
    shared = _gated(x, weights.shared.gate_up, weights.shared.down, is_row_stable=is_row_stable)
    shared_gate = linear(x, weights.shared_gate, is_row_stable=is_row_stable)
    return out + sigmoid(wide(shared_gate)).to(x.dtype) * shared
