"""Gated full attention over the paged pool of keys and values."""

from __future__ import annotations

import torch
from torch.nn import functional

from gpu_runner.gdn.batch import ForwardBatch
from gpu_runner.gdn.config import ModelConfig
from gpu_runner.gdn.linear import linear, zero_centred_rms_norm
from gpu_runner.gdn.ops.reference.rounding import sigmoid, wide
from gpu_runner.gdn.weights import AttentionWeights


def rotary_tables(config: ModelConfig, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The tables of cos and sin, float32 [N, rotary_dim]; the second half of the dimensions repeats the first."""
    steps = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32, device=positions.device)
    inverse = 1.0 / (config.rope_theta ** (steps / config.rotary_dim))
    angles = positions[:, None].float() * inverse
    # In float64: the last float32 bit of a CPU's cos depends on how many elements stand before it.
    angles = torch.cat([angles, angles], dim=-1).double()
    return angles.cos().float(), angles.sin().float()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """What x [N, heads, D] becomes with its first rotary_dim dimensions rotated by position; the rest is unchanged."""
    width = cos.shape[-1]
    head, rest = x[..., :width], x[..., width:]
    first, second = head.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    return torch.cat([head * cos + turned * sin, rest], dim=-1)


def gated_attention(
    x: torch.Tensor,
    weights: AttentionWeights,
    config: ModelConfig,
    batch: ForwardBatch,
    rotary: tuple[torch.Tensor, torch.Tensor],
    kv: tuple[torch.Tensor, torch.Tensor],
    *,
    is_row_stable: bool,
) -> torch.Tensor:
    """The attention mixer for x [N, hidden]; writes the new keys and values into `kv`.

    kv: the two pools of this layer, [rows, Hkv, D]. A token sees its sequence's prefix and the new tokens up to
    itself; with `batch.parents` only those of the new tokens that are its ancestors.
    """
    heads, kv_heads, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    projected = linear(x, weights.in_proj, is_row_stable=is_row_stable)
    packed, k, v = projected.split([2 * heads * width, kv_heads * width, kv_heads * width], dim=-1)
    q, gate = packed.view(-1, heads, 2 * width).chunk(2, dim=-1)
    q = zero_centred_rms_norm(q, weights.q_norm, config.rms_norm_eps)
    k = zero_centred_rms_norm(k.view(-1, kv_heads, width), weights.k_norm, config.rms_norm_eps)
    q, k = rotate(q, *rotary), rotate(k, *rotary)
    is_written = batch.kv_write >= 0
    kv[0][batch.kv_write[is_written]] = k[is_written]
    kv[1][batch.kv_write[is_written]] = v.view(-1, kv_heads, width)[is_written]
    out = torch.empty_like(q)
    for sequence, rows in enumerate(batch.kv_read):
        start, end = batch.cu_seqlens[sequence], batch.cu_seqlens[sequence + 1]
        parents = None if batch.parents is None else batch.parents[start:end].tolist()
        attend = _attend_row_by_row if is_row_stable else _attend
        out[start:end] = attend(q[start:end], kv[0][rows], kv[1][rows], parents)
    out = (out * sigmoid(wide(gate)).to(out.dtype)).reshape(-1, heads * width)
    return linear(out, weights.out_proj, is_row_stable=is_row_stable)


def lineages(parents: list[int]) -> list[list[int]]:
    """For each node of a draft tree its ancestors and itself, root first; a parent precedes its children."""
    found: list[list[int]] = []
    for node, parent in enumerate(parents):
        found.append([*(found[parent] if parent >= 0 else []), node])
    return found


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, parents: list[int] | None) -> torch.Tensor:
    """Attention of q [T, Hq, D] over k, v [L, Hkv, D], whose last T rows belong to the same tokens as q."""
    new, total = q.shape[0], k.shape[0]
    prefix = total - new
    mask = None
    if parents is not None:
        mask = torch.zeros(new, total, dtype=torch.bool)
        mask[:, :prefix] = True
        for node, lineage in enumerate(lineages(parents)):
            mask[node, [prefix + ancestor for ancestor in lineage]] = True
    elif prefix and new > 1:
        mask = torch.ones(new, total, dtype=torch.bool).tril(prefix)
    out = functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=None if mask is None else mask.to(q.device),
        is_causal=mask is None and new > 1,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)


def _attend_row_by_row(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, parents: list[int] | None) -> torch.Tensor:
    """As `_attend`, each token over exactly the keys it sees: the shapes depend on its position alone."""
    new, heads, width = q.shape
    prefix, kv_heads = k.shape[0] - new, k.shape[1]
    seen = [list(range(node + 1)) for node in range(new)] if parents is None else lineages(parents)
    out = torch.empty_like(q)
    for node, lineage in enumerate(seen):
        rows = torch.tensor([*range(prefix), *(prefix + ancestor for ancestor in lineage)], device=q.device)
        query = q[node].view(kv_heads, heads // kv_heads, width)
        scores = torch.bmm(query, k[rows].permute(1, 2, 0)) * width**-0.5
        probabilities = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
        out[node] = torch.bmm(probabilities, v[rows].transpose(0, 1)).reshape(heads, width)
    return out
