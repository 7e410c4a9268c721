"""Checkpoints in Hugging Face form, read into `ModelWeights`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from gpu_runner.gdn.config import Family, LayerKind, ModelConfig
from gpu_runner.gdn.weights import (
    AttentionWeights,
    DenseMlp,
    DraftWeights,
    GdnWeights,
    LayerWeights,
    ModelWeights,
    SparseMlp,
)

# Multimodal checkpoints keep the language model below another prefix.
_PREFIXES = ("model.language_model.", "model.")


# Eight bits mean little without their scales, which nothing here reads.
_STORED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class CheckpointError(ValueError):
    """A checkpoint lacks a tensor, or a tensor has another shape than the config says."""


def load_checkpoint(
    directory: Path, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> tuple[ModelConfig, ModelWeights]:
    """Config and weights of `directory`; `dtype` None keeps the dtype of the files.

    Raises ConfigError or CheckpointError, which name what is missing.
    """
    config = ModelConfig.from_directory(directory)
    tensors: dict[str, torch.Tensor] = {}
    for file in _files(directory):
        try:
            tensors.update(load_file(file))
        except (OSError, SafetensorError) as wrong:
            raise CheckpointError(f"{file} cannot be read, copy or download it again: {wrong}") from wrong
    return config, assemble(config, tensors, dtype=dtype, device=device)


def _files(directory: Path) -> list[Path]:
    """The files that the index names, all of them where there is no index; another model may lie beside these."""
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        files = sorted(directory.glob("*.safetensors"))
        if not files:
            raise CheckpointError(f"{directory} holds no .safetensors file")
        return files
    try:
        placed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return [directory / name for name in sorted(set(placed.values()))]
    except (AttributeError, KeyError, TypeError, ValueError) as wrong:
        raise CheckpointError(f"{index} has no weight_map of file names: {wrong!r}") from wrong


def assemble(
    config: ModelConfig,
    tensors: Mapping[str, torch.Tensor],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> ModelWeights:
    """The weights in `tensors`, keyed as on disk; CheckpointError for a missing tensor or a wrong shape."""
    prefix = next((p for p in _PREFIXES if f"{p}embed_tokens.weight" in tensors), _PREFIXES[-1])
    root = _Scope(tensors, prefix, dtype, device)
    embed = root.take("embed_tokens.weight", config.vocab_size, config.hidden_size)
    layers = tuple(_layer(config, index, root.inside(f"layers.{index}.")) for index in range(len(config.layer_types)))
    top = _Scope(tensors, "", dtype, device)
    lm_head = embed
    if not config.tie_word_embeddings:
        lm_head = top.take("lm_head.weight", config.vocab_size, config.hidden_size)
    draft = _draft(config, top.inside("mtp.")) if "mtp.fc.weight" in tensors else None
    return ModelWeights(embed, layers, root.take("norm.weight", config.hidden_size), lm_head, draft)


@dataclass(frozen=True, slots=True)
class _Scope:
    """The tensors below one prefix, checked and moved as they are taken."""

    tensors: Mapping[str, torch.Tensor]
    prefix: str
    dtype: torch.dtype | None
    device: torch.device | str

    def inside(self, name: str) -> _Scope:
        return _Scope(self.tensors, self.prefix + name, self.dtype, self.device)

    def has(self, name: str) -> bool:
        return self.prefix + name in self.tensors

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        key = self.prefix + name
        if key not in self.tensors:
            raise CheckpointError(f"the checkpoint has no tensor {key}")
        tensor = self.tensors[key]
        if tuple(tensor.shape) != shape:
            raise CheckpointError(f"{key} has shape {list(tensor.shape)}, config.json says {list(shape)}")
        if tensor.dtype not in _STORED:
            raise CheckpointError(f"{key} is {tensor.dtype}: quantised weights are not implemented, use plain ones")
        return tensor.to(device=self.device, dtype=dtype or self.dtype or tensor.dtype).contiguous()


def _layer(config: ModelConfig, index: int, scope: _Scope) -> LayerWeights:
    is_gdn = config.layer_types[index] is LayerKind.GDN
    mlp = scope.inside("mlp.")
    return LayerWeights(
        input_norm=scope.take("input_layernorm.weight", config.hidden_size),
        mixer=_gdn(config, scope.inside("linear_attn.")) if is_gdn else _attention(config, scope.inside("self_attn.")),
        post_norm=scope.take("post_attention_layernorm.weight", config.hidden_size),
        mlp=_sparse_mlp(config, mlp)
        if config.is_sparse(index)
        else _dense_mlp(mlp, config.hidden_size, config.intermediate_size),
    )


def _gdn(config: ModelConfig, scope: _Scope) -> GdnWeights:
    hidden, heads = config.hidden_size, config.linear_num_value_heads
    if config.family is Family.QWEN3_NEXT:
        qkvz = scope.take("in_proj_qkvz.weight", config.conv_dim + config.value_width, hidden)
        ba = scope.take("in_proj_ba.weight", 2 * heads, hidden)
        in_proj = torch.cat(deinterleave(config, qkvz, ba))
    else:
        in_proj = torch.cat(
            [
                scope.take("in_proj_qkv.weight", config.conv_dim, hidden),
                scope.take("in_proj_z.weight", config.value_width, hidden),
                scope.take("in_proj_b.weight", heads, hidden),
                scope.take("in_proj_a.weight", heads, hidden),
            ]
        )
    width = config.linear_conv_kernel_dim
    return GdnWeights(
        in_proj=in_proj,
        conv=scope.take("conv1d.weight", config.conv_dim, 1, width).squeeze(1),
        A_log=scope.take("A_log", heads, dtype=torch.float32),
        dt_bias=scope.take("dt_bias", heads, dtype=torch.float32),
        norm=scope.take("norm.weight", config.linear_value_head_dim),
        out_proj=scope.take("out_proj.weight", hidden, config.value_width),
    )


def deinterleave(config: ModelConfig, qkvz: torch.Tensor, ba: torch.Tensor) -> list[torch.Tensor]:
    """[queries, keys, values, z, b, a] from the two projections that Qwen3-Next packs per key head.

    qkvz: [2*Hk*Dk + 2*Hv*Dv, hidden]; ba: [2*Hv, hidden]. Source: transformers 5.23.0,
    `Qwen3NextGatedDeltaNet.fix_query_key_value_ordering`.
    """
    heads, hidden = config.linear_num_key_heads, qkvz.shape[1]
    ratio = config.linear_num_value_heads // heads
    key, value = config.linear_key_head_dim, ratio * config.linear_value_head_dim
    parts = qkvz.view(heads, 2 * key + 2 * value, hidden).split([key, key, value, value], dim=1)
    gates = ba.view(heads, 2 * ratio, hidden).split([ratio, ratio], dim=1)
    return [part.reshape(-1, hidden) for part in (*parts, *gates)]


def _attention(config: ModelConfig, scope: _Scope) -> AttentionWeights:
    hidden, width = config.hidden_size, config.head_dim
    queries, keys = config.num_attention_heads * width, config.num_key_value_heads * width
    projections = [
        scope.take("q_proj.weight", 2 * queries, hidden),
        scope.take("k_proj.weight", keys, hidden),
        scope.take("v_proj.weight", keys, hidden),
    ]
    return AttentionWeights(
        in_proj=torch.cat(projections),
        q_norm=scope.take("q_norm.weight", width),
        k_norm=scope.take("k_norm.weight", width),
        out_proj=scope.take("o_proj.weight", hidden, queries),
    )


def _dense_mlp(scope: _Scope, hidden: int, inner: int) -> DenseMlp:
    gate = scope.take("gate_proj.weight", inner, hidden)
    up = scope.take("up_proj.weight", inner, hidden)
    return DenseMlp(torch.cat([gate, up]), scope.take("down_proj.weight", hidden, inner))


def _sparse_mlp(config: ModelConfig, scope: _Scope) -> SparseMlp:
    hidden, inner, count = config.hidden_size, config.moe_intermediate_size, config.num_experts
    if scope.has("experts.gate_up_proj"):
        gate_up = scope.take("experts.gate_up_proj", count, 2 * inner, hidden)
        down = scope.take("experts.down_proj", count, hidden, inner)
    else:
        experts = [_dense_mlp(scope.inside(f"experts.{index}."), hidden, inner) for index in range(count)]
        gate_up = torch.stack([expert.gate_up for expert in experts])
        down = torch.stack([expert.down for expert in experts])
    return SparseMlp(
        router=scope.take("gate.weight", count, hidden),
        gate_up=gate_up,
        down=down,
        shared=_dense_mlp(scope.inside("shared_expert."), hidden, config.shared_expert_intermediate_size),
        shared_gate=scope.take("shared_expert_gate.weight", 1, hidden),
    )


def _draft(config: ModelConfig, scope: _Scope) -> DraftWeights:
    hidden = config.hidden_size
    return DraftWeights(
        hidden_norm=scope.take("pre_fc_norm_hidden.weight", hidden),
        embedding_norm=scope.take("pre_fc_norm_embedding.weight", hidden),
        fc=scope.take("fc.weight", hidden, 2 * hidden),
        norm=scope.take("norm.weight", hidden),
    )
