"""The forward pass of a hybrid model: Gated DeltaNet and gated full-attention layers over shared pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from gpu_runner.gdn.attention import gated_attention, rotary_tables
from gpu_runner.gdn.batch import ForwardBatch
from gpu_runner.gdn.cache.pools import Pools
from gpu_runner.gdn.config import ModelConfig
from gpu_runner.gdn.delta_net import LayerDrafts, gated_delta_net, parts_of
from gpu_runner.gdn.linear import linear, zero_centred_rms_norm
from gpu_runner.gdn.mlp import feed_forward
from gpu_runner.gdn.ops.verify import commit_path
from gpu_runner.gdn.registry import OpCtx
from gpu_runner.gdn.weights import GdnWeights, ModelWeights


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """Hidden states [N, hidden], after the last layer, before the final norm. drafts: one per GDN layer after a
    verify pass, else empty.
    """

    hidden: torch.Tensor
    drafts: tuple[LayerDrafts, ...]


class Model:
    """Config and weights with their forward pass; it holds no state of any sequence.

    It reads and writes of `Pools`: kv_k, kv_v [full layers, rows, Hkv, D] at `kv_write` and `kv_read`, conv and
    temporal [gdn layers, slots + 1, ...] at `state_slots`, at the slots of `tracks` and at `decode_track_slots`.
    A verify pass writes keys and values only; `commit` then advances the states.
    """

    def __init__(self, config: ModelConfig, weights: ModelWeights) -> None:
        self.config = config
        self.weights = weights

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.weights.embed.device

    @property
    def dtype(self) -> torch.dtype:
        """The model dtype."""
        return self.weights.embed.dtype

    def forward(self, batch: ForwardBatch, pools: Pools, ctx: OpCtx) -> torch.Tensor:
        """Logits, float32 [R, vocabulary], of `batch.logit_rows` or of each sequence's last token."""
        hidden = self.run(batch, pools, ctx).hidden
        rows = batch.logit_rows
        if rows is None:
            rows = torch.tensor([end - 1 for end in batch.cu_seqlens[1:]], device=hidden.device)
        return self.logits(hidden[rows], ctx)

    def run(self, batch: ForwardBatch, pools: Pools, ctx: OpCtx) -> ForwardOutput:
        """The hidden states of all tokens; the pools are advanced as `ForwardBatch` says.

        `ctx` is a template: its layer and phase are replaced. `ctx.deterministic` asks for row-stable products.
        """
        ctx = replace(ctx, phase=batch.phase)
        parts, rotary = parts_of(batch), rotary_tables(self.config, batch.positions)
        x = self.weights.embed[batch.token_ids]
        eps, stable = self.config.rms_norm_eps, ctx.deterministic
        drafts: list[LayerDrafts] = []
        gdn_layer = full_layer = 0
        for index, layer in enumerate(self.weights.layers):
            normed = zero_centred_rms_norm(x, layer.input_norm, eps)
            if isinstance(layer.mixer, GdnWeights):
                states = (pools.conv[gdn_layer], pools.temporal[gdn_layer])
                at_layer = replace(ctx, layer=index)
                mixed, left = gated_delta_net(normed, layer.mixer, self.config, batch, parts, states, at_layer)
                drafts += [left] if left else []
                gdn_layer += 1
            else:
                kv = (pools.kv_k[full_layer], pools.kv_v[full_layer])
                mixed = gated_attention(normed, layer.mixer, self.config, batch, rotary, kv, is_row_stable=stable)
                full_layer += 1
            x = x + mixed
            normed = zero_centred_rms_norm(x, layer.post_norm, eps)
            x = x + feed_forward(normed, layer.mlp, self.config, is_row_stable=stable)
        _track_decode(batch, pools)
        return ForwardOutput(x, tuple(drafts))

    def logits(self, hidden: torch.Tensor, ctx: OpCtx) -> torch.Tensor:
        """Logits, float32 [R, vocabulary], for hidden states [R, hidden] from before the final norm."""
        normed = zero_centred_rms_norm(hidden, self.weights.final_norm, self.config.rms_norm_eps)
        return linear(normed, self.weights.lm_head, is_row_stable=ctx.deterministic).float()

    def commit(
        self,
        output: ForwardOutput,
        batch: ForwardBatch,
        pools: Pools,
        path_rows: Sequence[Sequence[int]],
        *,
        destinations: torch.Tensor | None = None,
    ) -> None:
        """Writes the states after each sequence's accepted drafts into the pools, in every GDN layer.

        path_rows, destinations: see `ops.verify.commit_path`. Keys and values of accepted drafts are where
        `batch.kv_write` put them.
        """
        for layer, left in enumerate(output.drafts):
            commit_path(
                path_rows,
                left.snapshots,
                left.conv_inputs,
                pools.temporal[layer],
                pools.conv[layer],
                batch.state_slots,
                has_initial_state=batch.has_initial_state,
                destinations=destinations,
            )


def _track_decode(batch: ForwardBatch, pools: Pools) -> None:
    """Copies the advanced states of all layers at once to the slots that checkpoint this step."""
    if batch.decode_track_slots is None:
        return
    is_tracked = (batch.decode_track_slots >= 0) & (batch.state_slots >= 0)
    source, target = batch.state_slots[is_tracked], batch.decode_track_slots[is_tracked]
    pools.conv[:, target] = pools.conv[:, source]
    pools.temporal[:, target] = pools.temporal[:, source]
