"""Tiny random checkpoints in Hugging Face form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from gpu_runner.gdn.config import Family, LayerKind, ModelConfig
from gpu_runner.gdn.draft import fit_draft
from gpu_runner.gdn.loader import assemble
from gpu_runner.gdn.model import Model


def tiny_config(
    family: Family = Family.QWEN3_NEXT,
    *,
    head_dim: int = 16,
    vocab_size: int = 64,
    value_heads_per_key_head: int = 2,
    initializer_range: float = 0.15,
) -> ModelConfig:
    """A model of four layers [GDN, GDN, GDN, full] that runs in milliseconds on a CPU.

    `head_dim` is the head size of both kinds of layers, a multiple of 8: a quarter of it is rotated in pairs.
    """
    is_moe = family is not Family.QWEN3_5
    return ModelConfig(
        family=family,
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        layer_types=(LayerKind.GDN, LayerKind.GDN, LayerKind.GDN, LayerKind.FULL),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        rotary_dim=head_dim // 4,
        rope_theta=10000.0,
        rms_norm_eps=1e-6,
        linear_num_key_heads=2,
        linear_num_value_heads=2 * value_heads_per_key_head,
        linear_key_head_dim=head_dim,
        linear_value_head_dim=head_dim,
        linear_conv_kernel_dim=4,
        num_experts=4 if is_moe else 0,
        num_experts_per_tok=2 if is_moe else 0,
        moe_intermediate_size=32 if is_moe else 0,
        shared_expert_intermediate_size=32 if is_moe else 0,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=(),
        tie_word_embeddings=False,
        initializer_range=initializer_range,
    )


def write_checkpoint(directory: Path, config: ModelConfig, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes config.json and model.safetensors to `directory`, which is made where missing."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config.to_json(), indent=2) + "\n")
    save_file(dict(tensors), directory / "model.safetensors", metadata={"format": "pt"})


def random_tensors(config: ModelConfig, *, seed: int) -> dict[str, torch.Tensor]:
    """Random float32 tensors of every name and shape that a checkpoint of `config` has on disk.

    Matrices are normal with `initializer_range`, embeddings with 1, as torch.nn.Embedding: the last token then weighs
    enough for a draft to be right. dt_bias = 1 as in transformers 5.23.0, but A_log = log U(0.01, 0.3) instead of
    U(0.01, 16): states that forget within two tokens would hide a wrong one. Equal seeds give equal tensors.
    """
    generator = torch.Generator().manual_seed(seed)
    return {name: _initial(config, name, shape, generator) for name, shape in tensor_shapes(config)}


def _initial(config: ModelConfig, name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    if name.endswith("A_log"):
        return torch.empty(shape).uniform_(0.01, 0.3, generator=generator).log()
    if name.endswith(("dt_bias", "linear_attn.norm.weight")):
        return torch.ones(shape)
    if len(shape) == 1:
        # Zero would hide a norm that forgets the 1 of 1 + weight, or its weight.
        return torch.empty(shape).normal_(0.0, 0.1, generator=generator)
    if name == "model.embed_tokens.weight":
        return torch.empty(shape).normal_(generator=generator)
    return torch.empty(shape).normal_(0.0, config.initializer_range, generator=generator)


def tiny_tensors(config: ModelConfig, *, seed: int) -> dict[str, torch.Tensor]:
    """`random_tensors` with a draft head that was fitted to them, `mtp.*`."""
    tensors = random_tensors(config, seed=seed)
    return tensors | fit_draft(Model(config, assemble(config, tensors)), seed=seed)


def tiny_model(
    config: ModelConfig,
    *,
    seed: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Model:
    """A model of `tiny_tensors`, without a detour over files."""
    return Model(config, assemble(config, tiny_tensors(config, seed=seed), dtype=dtype, device=device))


def tensor_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor of a checkpoint, in the layout of its family; no draft head."""
    hidden = config.hidden_size
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    for index, kind in enumerate(config.layer_types):
        layer = f"model.layers.{index}."
        yield layer + "input_layernorm.weight", (hidden,)
        yield layer + "post_attention_layernorm.weight", (hidden,)
        mixer = _gdn_shapes(config) if kind is LayerKind.GDN else _attention_shapes(config)
        for name, shape in (*mixer, *_mlp_shapes(config, index)):
            yield layer + name, shape
    yield "model.norm.weight", (hidden,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, hidden)


def _gdn_shapes(config: ModelConfig) -> list[tuple[str, tuple[int, ...]]]:
    hidden, heads, values = config.hidden_size, config.linear_num_value_heads, config.value_width
    if config.family is Family.QWEN3_NEXT:
        projections = {"in_proj_qkvz": config.conv_dim + values, "in_proj_ba": 2 * heads}
    else:
        projections = {
            "in_proj_qkv": config.conv_dim,
            "in_proj_z": values,
            "in_proj_b": heads,
            "in_proj_a": heads,
        }
    return [
        *[(f"linear_attn.{name}.weight", (rows, hidden)) for name, rows in projections.items()],
        ("linear_attn.conv1d.weight", (config.conv_dim, 1, config.linear_conv_kernel_dim)),
        ("linear_attn.A_log", (heads,)),
        ("linear_attn.dt_bias", (heads,)),
        ("linear_attn.norm.weight", (config.linear_value_head_dim,)),
        ("linear_attn.out_proj.weight", (hidden, values)),
    ]


def _attention_shapes(config: ModelConfig) -> list[tuple[str, tuple[int, ...]]]:
    hidden, width = config.hidden_size, config.head_dim
    queries, keys = config.num_attention_heads * width, config.num_key_value_heads * width
    return [
        ("self_attn.q_proj.weight", (2 * queries, hidden)),
        ("self_attn.k_proj.weight", (keys, hidden)),
        ("self_attn.v_proj.weight", (keys, hidden)),
        ("self_attn.o_proj.weight", (hidden, queries)),
        ("self_attn.q_norm.weight", (width,)),
        ("self_attn.k_norm.weight", (width,)),
    ]


def _mlp_shapes(config: ModelConfig, index: int) -> list[tuple[str, tuple[int, ...]]]:
    hidden = config.hidden_size

    def dense(prefix: str, inner: int) -> list[tuple[str, tuple[int, ...]]]:
        return [
            (f"{prefix}gate_proj.weight", (inner, hidden)),
            (f"{prefix}up_proj.weight", (inner, hidden)),
            (f"{prefix}down_proj.weight", (hidden, inner)),
        ]

    if not config.is_sparse(index):
        return dense("mlp.", config.intermediate_size)
    return [
        ("mlp.gate.weight", (config.num_experts, hidden)),
        ("mlp.shared_expert_gate.weight", (1, hidden)),
        *dense("mlp.shared_expert.", config.shared_expert_intermediate_size),
        *[
            item
            for expert in range(config.num_experts)
            for item in dense(f"mlp.experts.{expert}.", config.moe_intermediate_size)
        ],
    ]
