"""The sizes of a hybrid model, read from the config.json of a Hugging Face checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from gpu_runner.gdn.cache.pools import PoolShape


class ConfigError(ValueError):
    """A config.json describes a model that this stack does not run, or lacks a size."""


class LayerKind(StrEnum):
    """How a layer mixes tokens; the values are those of `layer_types` in config.json."""

    GDN = "linear_attention"
    FULL = "full_attention"


class Family(StrEnum):
    """Model families by `model_type`; they differ in the packing of projections and in the MLP."""

    QWEN3_NEXT = "qwen3_next"
    QWEN3_5 = "qwen3_5_text"
    QWEN3_5_MOE = "qwen3_5_moe_text"


KERNEL_WIDTH = 4
"""The width of the causal convolution that the operators have built in."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of one model; names follow config.json where a field exists there.

    `layer_types` has one entry per layer. `num_experts` is 0 for a dense model. `rotary_dim` is the number of
    leading dimensions of a head that are rotated.
    """

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_types: tuple[LayerKind, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    rms_norm_eps: float
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    norm_topk_prob: bool
    decoder_sparse_step: int
    mlp_only_layers: tuple[int, ...]
    tie_word_embeddings: bool
    initializer_range: float

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Self:
        """The sizes in a decoded config.json; a multimodal one is read through its `text_config`.

        Raises ConfigError for an unknown `model_type`, for features that no model of the families uses and for sizes
        that no model can have.
        """
        text = raw.get("text_config", raw)
        if not isinstance(text, dict):
            raise ConfigError(f"text_config is {text!r}; expected an object")
        # Whether embeddings are tied is said beside the text_config, about the model as a whole.
        raw = text | {key: raw[key] for key in ("tie_word_embeddings",) if key in raw}
        model_type = raw.get("model_type")
        families = {str(family): family for family in Family}
        if model_type not in families:
            raise ConfigError(f"model_type {model_type!r} is not one of {', '.join(families)}")
        if raw.get("attention_bias") or raw.get("hidden_act", "silu") != "silu":
            raise ConfigError("attention_bias and activations other than silu are not implemented")
        try:
            return cls._from_fields(families[model_type], raw)
        except KeyError as missing:
            raise ConfigError(f"config.json of {model_type} has no {missing}") from missing
        except (TypeError, AttributeError) as wrong:
            raise ConfigError(f"config.json of {model_type} holds a value of a wrong type: {wrong}") from wrong

    @classmethod
    def _from_fields(cls, family: Family, raw: dict[str, Any]) -> Self:
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        for stated in (rope, raw.get("rope_scaling") or {}):
            # Older files call it "type".
            rope_type = stated.get("rope_type", stated.get("type", "default"))
            if rope_type != "default":
                raise ConfigError(f"rope_type {rope_type!r} is not implemented; only 'default' is")
        head_dim = _size(raw, "head_dim")
        rotary = rope.get("partial_rotary_factor", raw.get("partial_rotary_factor", 0.25))
        layers = _size(raw, "num_hidden_layers")
        interval = _size({"full_attention_interval": 4} | raw, "full_attention_interval")
        kinds = raw.get("layer_types") or [
            LayerKind.FULL if (layer + 1) % interval == 0 else LayerKind.GDN for layer in range(layers)
        ]
        if len(kinds) != layers:
            raise ConfigError(f"layer_types has {len(kinds)} entries for {layers} layers")
        if unknown := sorted(set(kinds) - set(LayerKind)):
            raise ConfigError(f"layer_types {unknown} are not implemented; known: {', '.join(LayerKind)}")
        if _size(raw, "linear_conv_kernel_dim") != KERNEL_WIDTH:
            width = raw["linear_conv_kernel_dim"]
            raise ConfigError(f"linear_conv_kernel_dim {width} is not implemented; the kernels have {KERNEL_WIDTH}")
        # These three are Qwen3-Next's; transformers runs a Qwen3.5 as if they were not there.
        next_only = raw if family is Family.QWEN3_NEXT else {}
        is_moe = family is not Family.QWEN3_5
        config = cls(
            family=family,
            vocab_size=_size(raw, "vocab_size"),
            hidden_size=_size(raw, "hidden_size"),
            intermediate_size=raw.get("intermediate_size", 0),
            layer_types=tuple(LayerKind(kind) for kind in kinds),
            num_attention_heads=_size(raw, "num_attention_heads"),
            num_key_value_heads=_size(raw, "num_key_value_heads"),
            head_dim=head_dim,
            rotary_dim=int(head_dim * rotary),
            rope_theta=float(rope.get("rope_theta", raw.get("rope_theta", 10000.0))),
            rms_norm_eps=_number(raw, "rms_norm_eps"),
            linear_num_key_heads=_size(raw, "linear_num_key_heads"),
            linear_num_value_heads=_size(raw, "linear_num_value_heads"),
            linear_key_head_dim=_size(raw, "linear_key_head_dim"),
            linear_value_head_dim=_size(raw, "linear_value_head_dim"),
            linear_conv_kernel_dim=KERNEL_WIDTH,
            num_experts=_size(raw, "num_experts", least=0) if is_moe else 0,
            num_experts_per_tok=_size(raw, "num_experts_per_tok") if is_moe else 0,
            moe_intermediate_size=_size(raw, "moe_intermediate_size") if is_moe else 0,
            shared_expert_intermediate_size=_size(raw, "shared_expert_intermediate_size") if is_moe else 0,
            norm_topk_prob=next_only.get("norm_topk_prob", True),
            decoder_sparse_step=_size({"decoder_sparse_step": 1} | next_only, "decoder_sparse_step"),
            mlp_only_layers=tuple(next_only.get("mlp_only_layers") or ()),
            tie_word_embeddings=raw.get("tie_word_embeddings", False),
            initializer_range=raw.get("initializer_range", 0.02),
        )
        _refuse_misfits(config)
        return config

    @classmethod
    def from_directory(cls, directory: Path) -> Self:
        """The sizes in `directory/config.json`; ConfigError when there is none."""
        path = directory / "config.json"
        if not path.is_file():
            raise ConfigError(f"{directory} holds no config.json; give the directory of a checkpoint")
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as wrong:
            raise ConfigError(f"{path} is not JSON: {wrong}") from wrong
        if not isinstance(raw, dict):
            raise ConfigError(f"{path} holds no JSON object")
        return cls.from_json(raw)

    def to_json(self) -> dict[str, Any]:
        """A config.json that transformers and `from_json` read back as the same model."""
        fields: dict[str, Any] = {
            "architectures": [_ARCHITECTURE[self.family]],
            "model_type": str(self.family),
            "layer_types": [str(kind) for kind in self.layer_types],
            "num_hidden_layers": len(self.layer_types),
            "rope_parameters": {
                "partial_rotary_factor": self.rotary_dim / self.head_dim,
                "rope_theta": self.rope_theta,
                "rope_type": "default",
            },
            "dtype": "float32",
            "hidden_act": "silu",
        }
        moe_only = {
            "num_experts",
            "num_experts_per_tok",
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
        }
        next_only = {"norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"}
        written_above = {"family", "layer_types", "rotary_dim", "rope_theta"}
        skipped = written_above
        if self.family is Family.QWEN3_5:
            skipped = skipped | moe_only
        if self.family is not Family.QWEN3_NEXT:
            skipped = skipped | next_only
        for name in self.__slots__:
            if name not in skipped:
                value = getattr(self, name)
                fields[name] = list(value) if isinstance(value, tuple) else value
        return fields

    @property
    def conv_dim(self) -> int:
        """Channels of the causal convolution: queries, keys and values side by side."""
        return 2 * self.query_width + self.value_width

    @property
    def query_width(self) -> int:
        """Hk * Dk, the width of all queries or of all keys of a GDN layer."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_width(self) -> int:
        """Hv * Dv, the width of all values of a GDN layer."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def pool_shape(self) -> PoolShape:
        """The sizes of the pools that this model needs."""
        return PoolShape(
            full_layers=self.layer_types.count(LayerKind.FULL),
            gdn_layers=self.layer_types.count(LayerKind.GDN),
            kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            conv_dim=self.conv_dim,
            value_heads=self.linear_num_value_heads,
            value_dim=self.linear_value_head_dim,
            key_dim=self.linear_key_head_dim,
            conv_width=self.linear_conv_kernel_dim,
        )

    def is_sparse(self, layer: int) -> bool:
        """Whether `layer` (counted from 0) has a mixture of experts instead of a dense MLP."""
        return (
            self.num_experts > 0 and layer not in self.mlp_only_layers and (layer + 1) % self.decoder_sparse_step == 0
        )


def _size(raw: dict[str, Any], name: str, *, least: int = 1) -> int:
    """The field `name`, which must be a whole number from `least`."""
    value = raw[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} is {value!r}; expected a whole number from {least}")
    return value


def _number(raw: dict[str, Any], name: str) -> float:
    value = raw[name]
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; expected a number")
    return float(value)


def _refuse_misfits(config: ModelConfig) -> None:
    """Raises ConfigError where sizes that are right each by itself do not go together."""
    heads = (config.num_attention_heads, config.num_key_value_heads)
    linear_heads = (config.linear_num_value_heads, config.linear_num_key_heads)
    for whole, part in (heads, linear_heads):
        if whole % part:
            raise ConfigError(f"{whole} heads cannot share {part} key heads evenly")
    if config.rotary_dim % 2 or not 0 <= config.rotary_dim <= config.head_dim:
        raise ConfigError(f"{config.rotary_dim} of {config.head_dim} dimensions are rotated; expected an even number")
    if 0 < config.num_experts < config.num_experts_per_tok:
        raise ConfigError(f"{config.num_experts_per_tok} experts per token are more than the {config.num_experts}")


_ARCHITECTURE = {
    Family.QWEN3_NEXT: "Qwen3NextForCausalLM",
    Family.QWEN3_5: "Qwen3_5ForCausalLM",
    Family.QWEN3_5_MOE: "Qwen3_5MoeForCausalLM",
}
