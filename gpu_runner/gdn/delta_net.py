"""The Gated DeltaNet mixer: one layer over the tokens of a forward pass, in the form that each phase wants."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from gpu_runner.gdn import faults
from gpu_runner.gdn.batch import ForwardBatch, Phase, TrackCopy
from gpu_runner.gdn.config import ModelConfig
from gpu_runner.gdn.faults import Fault
from gpu_runner.gdn.linear import linear
from gpu_runner.gdn.ops import calls
from gpu_runner.gdn.ops.plan import CHUNK, ChunkPlan, SnapshotPlan, plan_chunks, plan_snapshots
from gpu_runner.gdn.ops.verify import conv_window
from gpu_runner.gdn.registry import OpCtx
from gpu_runner.gdn.weights import GdnWeights


@dataclass(frozen=True, slots=True)
class LayerDrafts:
    """What verification leaves of one layer, for the commit of accepted drafts.

    snapshots: float32 [N, Hv, Dv, Dk], the state after each draft. conv_inputs: [N, conv_dim], raw.
    """

    snapshots: torch.Tensor
    conv_inputs: torch.Tensor


@dataclass(frozen=True, slots=True)
class Part:
    """The sequences of a batch that share one form of the recurrence.

    rows: int64, their tokens in the batch; sequences: int64, their places in it. plan, snapshots: over
    their tokens alone. is_chunked: the chunked form, else one step per token.
    """

    rows: torch.Tensor
    sequences: torch.Tensor
    plan: ChunkPlan
    snapshots: SnapshotPlan
    is_chunked: bool


def parts_of(batch: ForwardBatch) -> list[Part]:
    """How a forward pass is cut, once for all layers.

    A mixed batch steps through sequences that continue with one token and chunks the others; any other phase has
    one form for all.
    """
    lengths = [end - start for start, end in zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False)]
    continues = batch.has_initial_state.tolist()
    is_chunked = [
        batch.phase is Phase.PREFILL or (batch.phase is Phase.MIXED and not (length == 1 and kept))
        for length, kept in zip(lengths, continues, strict=True)
    ]
    parts = []
    for form in (True, False):
        members = [sequence for sequence, chunked in enumerate(is_chunked) if chunked is form]
        if members:
            parts.append(_part(batch, lengths, members, is_chunked=form))
    return parts


def _part(batch: ForwardBatch, lengths: list[int], members: list[int], *, is_chunked: bool) -> Part:
    device = batch.token_ids.device
    offsets = [0]
    rows: list[int] = []
    for sequence in members:
        start = batch.cu_seqlens[sequence]
        rows.extend(range(start, start + lengths[sequence]))
        offsets.append(offsets[-1] + lengths[sequence])
    plan = plan_chunks(offsets, device)
    place = {sequence: index for index, sequence in enumerate(members)}
    tracks = [replace(track, sequence=place[track.sequence]) for track in batch.tracks if track.sequence in place]
    snapshots = plan_snapshots(tracks, plan)
    index = torch.tensor(members, device=device)
    return Part(torch.tensor(rows, device=device), index, plan, snapshots, is_chunked)


def gated_delta_net(
    x: torch.Tensor,
    weights: GdnWeights,
    config: ModelConfig,
    batch: ForwardBatch,
    parts: list[Part],
    pools: tuple[torch.Tensor, torch.Tensor],
    ctx: OpCtx,
) -> tuple[torch.Tensor, LayerDrafts | None]:
    """The mixer's output [N, hidden] for x [N, hidden]; drafts only in the verify phase, which leaves the pools.

    pools: convolution [slots, conv_dim, 3] and recurrent state [slots, Hv, Dv, Dk] of this layer, advanced in place.
    """
    heads, width = config.linear_num_value_heads, config.linear_value_head_dim
    projected = linear(x, weights.in_proj, is_row_stable=ctx.deterministic)
    mixed, z, b, a = projected.split([config.conv_dim, config.value_width, heads, heads], dim=-1)
    drafts = None
    if batch.phase is Phase.VERIFY:
        o, drafts = _verify(mixed, a, b, weights, batch, parts[0], pools, ctx)
    else:
        o = mixed.new_empty(x.shape[0], heads, width)
        for part in parts:
            form = _chunked if part.is_chunked else _stepped
            o[part.rows] = form(mixed[part.rows], a[part.rows], b[part.rows], weights, config, batch, part, pools, ctx)
            for track in part.snapshots.final:
                source = int(batch.state_slots[part.sequences[track.sequence]])
                for pool in pools:
                    pool[track.slot] = pool[source]
    o = calls.rmsnorm_gated(o, z.unflatten(-1, (heads, width)), weights.norm, eps=config.rms_norm_eps, ctx=ctx)
    return linear(o.flatten(1), weights.out_proj, is_row_stable=ctx.deterministic), drafts


def _chunked(
    mixed: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    weights: GdnWeights,
    config: ModelConfig,
    batch: ForwardBatch,
    part: Part,
    pools: tuple[torch.Tensor, torch.Tensor],
    ctx: OpCtx,
) -> torch.Tensor:
    """Chunks of 64; writes the checkpoints of the part's snapshot plan beside the final states."""
    conv, temporal = pools
    slots, kept, plan = batch.state_slots[part.sequences], batch.has_initial_state[part.sequences], part.plan
    windows = [(track.slot, _window(mixed, conv, track, slots, kept, plan)) for track in part.snapshots.tracks]
    convolved = calls.conv1d(mixed, weights.conv, conv, slots, kept, plan, ctx=ctx)
    widths = [config.query_width, config.query_width, config.value_width]
    q, k, v = convolved.split(widths, dim=-1)
    q, k = (
        calls.l2norm(part_.unflatten(-1, (config.linear_num_key_heads, config.linear_key_head_dim)), ctx=ctx)
        for part_ in (q, k)
    )
    v = v.unflatten(-1, (config.linear_num_value_heads, config.linear_value_head_dim))
    g, beta = calls.gating(a, b, weights.A_log, weights.dt_bias, ctx=ctx)
    g_cum = calls.cumsum(g, plan, ctx=ctx)
    inverse = calls.kkt_solve(k, beta, g_cum, plan, ctx=ctx)
    w, u = calls.wu(k, v, beta, g_cum, inverse, plan, ctx=ctx)
    states = calls.delta_h(k, w, u, g_cum, temporal, slots, kept, plan, snapshots=part.snapshots, ctx=ctx)
    o = calls.chunk_o(q, k, states.v_new, states.h, g_cum, plan, ctx=ctx)
    for row, (slot, window) in enumerate(windows):
        conv[slot] = window
        temporal[slot] = _checkpoint(states, part.snapshots.tracks[row], plan, row)
    return o


def _window(
    mixed: torch.Tensor,
    conv: torch.Tensor,
    track: TrackCopy,
    slots: torch.Tensor,
    kept: torch.Tensor,
    plan: ChunkPlan,
) -> torch.Tensor:
    return conv_window(
        mixed,
        conv,
        int(slots[track.sequence]),
        start=plan.cu_seqlens[track.sequence],
        length=track.length,
        has_initial_state=bool(kept[track.sequence]),
    )


def _checkpoint(states: calls.DeltaStates, track: TrackCopy, plan: ChunkPlan, row: int) -> torch.Tensor:
    """The state after `track.length` tokens: the float32 snapshot, not the rounded state that chunk_o reads."""
    if faults.is_on(Fault.H_SNAPSHOT_BF16):
        return states.h[plan.first_chunks[track.sequence] + track.length // CHUNK]
    assert states.snapshots is not None, "delta_h was given the snapshot plan"
    return states.snapshots[row]


def _stepped(
    mixed: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    weights: GdnWeights,
    config: ModelConfig,
    batch: ForwardBatch,
    part: Part,
    pools: tuple[torch.Tensor, torch.Tensor],
    ctx: OpCtx,
) -> torch.Tensor:
    """One token per sequence. A mixed batch uses the kernel of verification, whose snapshots become the states."""
    del config
    conv, temporal = pools
    slots, kept = batch.state_slots[part.sequences], batch.has_initial_state[part.sequences]
    convolved = calls.conv1d_update(mixed, weights.conv, conv, slots, kept, ctx=ctx)
    if batch.phase is Phase.DECODE:
        return calls.packed_decode(convolved, a, b, weights.A_log, weights.dt_bias, temporal, slots, kept, ctx=ctx)
    roots = torch.full_like(slots, -1)
    o, snapshots = calls.verify_decode(
        convolved, a, b, weights.A_log, weights.dt_bias, temporal, slots, kept, roots, part.plan, ctx=ctx
    )
    live = slots >= 0
    temporal[slots[live]] = snapshots[live]
    return o


def _verify(
    mixed: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    weights: GdnWeights,
    batch: ForwardBatch,
    part: Part,
    pools: tuple[torch.Tensor, torch.Tensor],
    ctx: OpCtx,
) -> tuple[torch.Tensor, LayerDrafts]:
    conv, temporal = pools
    slots, kept, parents = batch.state_slots, batch.has_initial_state, batch.parents
    if parents is None:
        raise ValueError("a verify batch needs parents, one per draft token")
    convolved = calls.conv1d_verify(mixed, weights.conv, conv, slots, kept, parents, part.plan, ctx=ctx)
    o, snapshots = calls.verify_decode(
        convolved, a, b, weights.A_log, weights.dt_bias, temporal, slots, kept, parents, part.plan, ctx=ctx
    )
    return o, LayerDrafts(snapshots, mixed)
