"""Checkpoints: written here and read back, and what is wrong with a broken one is named."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpu_runner.gdn.config import ConfigError, Family, LayerKind, ModelConfig
from gpu_runner.gdn.loader import CheckpointError, assemble, deinterleave, load_checkpoint
from gpu_runner.gdn.model import Model
from gpu_runner.gdn.registry import OpCtx
from gpu_runner.gdn.sequence import Sequence
from gpu_runner.gdn.tiny import random_tensors, tiny_config, tiny_tensors, write_checkpoint

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


def logits_of(config, weights):
    sequence = Sequence(Model(config, weights), len(TOKENS), OpCtx())
    return sequence.logits(sequence.extend(TOKENS))


@pytest.mark.parametrize("family", list(Family))
def test_a_written_checkpoint_reads_back_as_the_same_model(family, tmp_path):
    config = tiny_config(family)
    tensors = tiny_tensors(config, seed=1)
    write_checkpoint(tmp_path, config, tensors)
    read_config, weights = load_checkpoint(tmp_path)
    assert read_config == config
    assert weights.draft is not None
    assert torch.equal(logits_of(config, weights), logits_of(config, assemble(config, tensors)))


@pytest.mark.parametrize("family", list(Family))
def test_config_json_round_trip(family):
    config = replace(tiny_config(family), layer_types=(LayerKind.FULL, LayerKind.GDN))
    assert ModelConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_published_configs_without_layer_types_and_with_flat_rope_fields():
    raw = tiny_config().to_json()
    for name in ("layer_types", "rope_parameters"):
        del raw[name]
    raw |= {"full_attention_interval": 2, "rope_theta": 1e7, "partial_rotary_factor": 0.5}
    config = ModelConfig.from_json(raw)
    assert config.layer_types == (LayerKind.GDN, LayerKind.FULL, LayerKind.GDN, LayerKind.FULL)
    assert (config.rope_theta, config.rotary_dim) == (1e7, 8)


def test_qkvz_is_taken_apart_per_key_head():
    """Two key heads with two value heads each: the rows of a head lie together on disk, of a projection in memory."""
    config = tiny_config(head_dim=8)
    rows = 2 * (8 + 8 + 16 + 16)
    qkvz, ba = (torch.arange(n, dtype=torch.float32)[:, None] for n in (rows, 8))
    q, k, v, z, b, a = (part[:, 0].tolist() for part in deinterleave(config, qkvz, ba))
    assert q == [*range(8), *range(48, 56)]
    assert k == [*range(8, 16), *range(56, 64)]
    assert v == [*range(16, 32), *range(64, 80)]
    assert z == [*range(32, 48), *range(80, 96)]
    assert (b, a) == ([0, 1, 4, 5], [2, 3, 6, 7])


def test_shards_multimodal_prefixes_and_stacked_experts_are_read(tmp_path):
    config = tiny_config(Family.QWEN3_5_MOE)
    tensors = random_tensors(config, seed=2)
    want = logits_of(config, assemble(config, tensors))
    stacked = {}
    for layer in range(4):
        prefix = f"model.layers.{layer}.mlp.experts."
        halves = [
            [tensors.pop(f"{prefix}{expert}.{name}_proj.weight") for expert in range(4)]
            for name in ("gate", "up", "down")
        ]
        stacked[f"{prefix}gate_up_proj"] = torch.cat([torch.stack(halves[0]), torch.stack(halves[1])], dim=1)
        stacked[f"{prefix}down_proj"] = torch.stack(halves[2])
    renamed = {name.replace("model.", "model.language_model."): t for name, t in (tensors | stacked).items()}
    names = sorted(renamed)
    save_file({name: renamed[name] for name in names[::2]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({name: renamed[name] for name in names[1::2]}, tmp_path / "model-00002-of-00002.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_5_moe", "text_config": config.to_json()}))
    assert torch.equal(logits_of(*load_checkpoint(tmp_path)), want)


def test_tied_embeddings_and_another_dtype(tmp_path):
    config = replace(tiny_config(Family.QWEN3_5), tie_word_embeddings=True)
    write_checkpoint(tmp_path, config, random_tensors(config, seed=3))
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    _, weights = load_checkpoint(tmp_path, dtype=torch.bfloat16)
    assert weights.lm_head is weights.embed
    assert weights.embed.dtype is torch.bfloat16
    assert weights.layers[0].mixer.A_log.dtype is torch.float32


def test_equal_seeds_give_equal_tensors_and_others_do_not():
    config = tiny_config()
    first, again, other = (random_tensors(config, seed=seed) for seed in (4, 4, 5))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_what_is_wrong_with_a_checkpoint_is_named(tmp_path):
    config = tiny_config(Family.QWEN3_5)
    tensors = random_tensors(config, seed=6)
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        load_checkpoint(tmp_path)
    write_checkpoint(tmp_path, config, tensors)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"holds no \.safetensors"):
        load_checkpoint(tmp_path)
    missing = {name: t for name, t in tensors.items() if name != "model.layers.2.linear_attn.A_log"}
    with pytest.raises(CheckpointError, match=r"model\.layers\.2\.linear_attn\.A_log"):
        assemble(config, missing)
    with pytest.raises(CheckpointError, match=r"norm\.weight has shape \[5\], config\.json says \[32\]"):
        assemble(config, tensors | {"model.norm.weight": torch.zeros(5)})
    for dtype in (torch.int32, torch.float8_e4m3fn):
        with pytest.raises(CheckpointError, match="quantised"):
            assemble(config, tensors | {"model.norm.weight": torch.zeros(32).to(dtype)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "'llama' is not one of"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "other than silu"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "'yarn'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "yarn", "factor": 4}}, "'yarn'"),
        ({"layer_types": ["full_attention"]}, "1 entries for 4 layers"),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_attention"),
        ({"linear_conv_kernel_dim": 3}, "linear_conv_kernel_dim 3"),
    ],
)
def test_configs_of_other_models_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_json(tiny_config().to_json() | change)


def test_a_config_without_a_size_is_refused():
    raw = tiny_config().to_json()
    del raw["linear_num_key_heads"]
    with pytest.raises(ConfigError, match="linear_num_key_heads"):
        ModelConfig.from_json(raw)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": None}, "head_dim is None"),
        ({"num_hidden_layers": "4"}, "num_hidden_layers is '4'"),
        ({"num_hidden_layers": 0, "layer_types": []}, "num_hidden_layers is 0"),
        ({"full_attention_interval": 0, "layer_types": None}, "full_attention_interval is 0"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok is 0"),
        ({"num_experts_per_tok": 9}, "9 experts per token"),
        ({"linear_num_value_heads": 3}, "3 heads cannot share 2"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps is 'x'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.2}}, "3 of 16 dimensions"),
        ({"rope_parameters": [1]}, "wrong type"),
        ({"text_config": None}, "text_config is None"),
    ],
)
def test_sizes_that_no_model_has_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_json(tiny_config().to_json() | change)


@pytest.mark.parametrize("text", ["{", "[]", "null"])
def test_a_config_that_is_no_json_object_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_checkpoint(tmp_path)


def test_fields_that_only_qwen3_next_has_are_ignored_elsewhere():
    stated = {"norm_topk_prob": False, "mlp_only_layers": [0], "decoder_sparse_step": 2}
    config = tiny_config(Family.QWEN3_5_MOE)
    assert ModelConfig.from_json(config.to_json() | stated) == config
    assert not ModelConfig.from_json(tiny_config().to_json() | stated).norm_topk_prob


def test_a_multimodal_config_says_outside_of_its_text_config_that_embeddings_are_tied():
    text = tiny_config(Family.QWEN3_5).to_json()
    config = ModelConfig.from_json({"text_config": text, "tie_word_embeddings": True})
    assert config.tie_word_embeddings
    assert not ModelConfig.from_json({"text_config": text}).tie_word_embeddings


def test_a_damaged_file_is_named_and_a_stray_one_beside_the_index_is_not_read(tmp_path):
    config = tiny_config(Family.QWEN3_5)
    tensors = random_tensors(config, seed=7)
    write_checkpoint(tmp_path, config, tensors)
    save_file({name: torch.zeros_like(t) for name, t in tensors.items()}, tmp_path / "other.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "model.safetensors")}))
    assert torch.equal(logits_of(*load_checkpoint(tmp_path)), logits_of(config, assemble(config, tensors)))
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-1000])
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        load_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        load_checkpoint(tmp_path)
    index.write_text("{}")
    with pytest.raises(CheckpointError, match="no weight_map"):
        load_checkpoint(tmp_path)
