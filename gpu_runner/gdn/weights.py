"""The parameters of a model, as the forward pass wants them."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class GdnWeights:
    """A Gated DeltaNet mixer.

    in_proj: [conv_dim + Hv*Dv + 2*Hv, hidden]; its rows give, in this order, queries, keys and values (all heads
    of each side by side), the output gate z, b and a. conv: [conv_dim, 4]. A_log, dt_bias: float32 [Hv].
    norm: [Dv]. out_proj: [hidden, Hv*Dv].
    """

    in_proj: torch.Tensor
    conv: torch.Tensor
    A_log: torch.Tensor
    dt_bias: torch.Tensor
    norm: torch.Tensor
    out_proj: torch.Tensor


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """A gated full-attention mixer.

    in_proj: [2*Hq*D + 2*Hkv*D, hidden]; its rows give per query head the query and its gate (2*D), then the keys,
    then the values. q_norm, k_norm: [D], zero-centred. out_proj: [hidden, Hq*D].
    """

    in_proj: torch.Tensor
    q_norm: torch.Tensor
    k_norm: torch.Tensor
    out_proj: torch.Tensor


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """gate_up: [2*I, hidden], gate rows first. down: [hidden, I]."""

    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class SparseMlp:
    """router: [E, hidden]. gate_up: [E, 2*I, hidden]. down: [E, hidden, I]. shared_gate: [1, hidden]."""

    router: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    shared: DenseMlp
    shared_gate: torch.Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; both norms are zero-centred: the factor is 1 + weight."""

    input_norm: torch.Tensor
    mixer: GdnWeights | AttentionWeights
    post_norm: torch.Tensor
    mlp: DenseMlp | SparseMlp


@dataclass(frozen=True, slots=True)
class DraftWeights:
    """The draft head: the next hidden state from this hidden state and the next token's embedding.

    hidden_norm, embedding_norm, norm: [hidden], zero-centred. fc: [hidden, 2*hidden], embedding columns first.
    The names on disk are those of Qwen3-Next's `mtp` module; its decoder layer is left out.
    """

    hidden_norm: torch.Tensor
    embedding_norm: torch.Tensor
    fc: torch.Tensor
    norm: torch.Tensor


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """embed, lm_head: [vocabulary, hidden] (the same tensor when tied). draft: None without an `mtp` module."""

    embed: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    lm_head: torch.Tensor
    draft: DraftWeights | None
