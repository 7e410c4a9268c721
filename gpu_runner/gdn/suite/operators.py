"""Each operator, in whatever realization the environment selects, against PyTorch in float64."""

from __future__ import annotations

import torch

from gpu_runner.gdn.batch import Phase, TrackCopy
from gpu_runner.gdn.ops import calls
from gpu_runner.gdn.ops.plan import plan_snapshots
from gpu_runner.gdn.registry import OpCtx
from gpu_runner.gdn.suite.case import case
from gpu_runner.gdn.suite.inputs import Inputs, assert_close, oracle_context

LENGTHS = (66, 1)


@case
def gating_matches_float64() -> None:
    """Log decay and beta."""
    i = Inputs.draw(LENGTHS, seed=1)
    o = i.in_float64()
    got = calls.gating(i.a, i.b, i.A_log, i.dt_bias, ctx=OpCtx())
    want = calls.gating(o.a, o.b, o.A_log, o.dt_bias, ctx=oracle_context())
    for ours, theirs in zip(got, want, strict=True):
        assert_close(ours, theirs)


@case
def l2norm_matches_float64() -> None:
    """Unit length, in the model dtype."""
    i = Inputs.draw(LENGTHS, seed=2)
    assert_close(calls.l2norm(i.v, ctx=OpCtx()), calls.l2norm(i.in_float64().v, ctx=oracle_context()))


@case
def conv1d_carries_state_over_a_split() -> None:
    """One call over a sequence, and two calls over its halves with the pool between them."""
    whole, start = Inputs.draw((66,), seed=3), Inputs.draw((40,), seed=3).plan
    rest, i, ctx = Inputs.draw((26,), seed=3).plan, whole.fresh(), OpCtx()
    kept = torch.ones_like(i.kept)
    first = calls.conv1d(i.x[:40], i.weight, i.conv_pool, i.slots, i.kept, start, ctx=ctx)
    second = calls.conv1d(i.x[40:], i.weight, i.conv_pool, i.slots, kept, rest, ctx=ctx)
    o = whole.fresh().in_float64()
    want = calls.conv1d(o.x, o.weight, o.conv_pool, o.slots, o.kept, o.plan, ctx=oracle_context())
    assert_close(torch.cat([first, second]), want)
    assert_close(i.conv_pool, o.conv_pool)


@case
def conv1d_update_matches_float64() -> None:
    """One token for each of three sequences."""
    i = Inputs.draw((1, 1, 1), seed=4)
    o = i.in_float64()
    got = calls.conv1d_update(i.x, i.weight, i.conv_pool, i.slots, i.kept, ctx=OpCtx(phase=Phase.DECODE))
    want = calls.conv1d_update(o.x, o.weight, o.conv_pool, o.slots, o.kept, ctx=oracle_context())
    assert_close(got, want)
    assert_close(i.conv_pool, o.conv_pool)


@case
def conv1d_verify_follows_parents() -> None:
    """A tree of drafts, whose branches must not see each other."""
    i, parents = Inputs.draw((5,), seed=5), torch.tensor([-1, 0, 0, 1, 2])
    o, parents = i.in_float64(), parents.to(i.x.device)
    ctx = OpCtx(phase=Phase.VERIFY)
    got = calls.conv1d_verify(i.x, i.weight, i.conv_pool, i.slots, i.kept, parents, i.plan, ctx=ctx)
    want = calls.conv1d_verify(o.x, o.weight, o.conv_pool, o.slots, o.kept, parents, o.plan, ctx=oracle_context())
    assert_close(got, want)


@case
def cumsum_restarts_in_each_chunk() -> None:
    """Sums of log decays inside chunks."""
    i = Inputs.draw(LENGTHS, seed=6)
    o = i.in_float64()
    assert_close(calls.cumsum(i.g, i.plan, ctx=OpCtx()), calls.cumsum(o.g, o.plan, ctx=oracle_context()))


def _chunked_stages(i: Inputs, ctx: OpCtx) -> tuple[torch.Tensor, ...]:
    """G, A, w and u, by the stages before the scan."""
    g_cum = calls.cumsum(i.g, i.plan, ctx=ctx)
    A = calls.kkt_solve(i.k, i.beta, g_cum, i.plan, ctx=ctx)
    return g_cum, A, *calls.wu(i.k, i.v, i.beta, g_cum, A, i.plan, ctx=ctx)


@case
def kkt_solve_matches_float64() -> None:
    """The inverse of the lower triangle, with its tiles above the diagonal."""
    i = Inputs.draw(LENGTHS, seed=7)
    o = i.in_float64()
    oracle = oracle_context()
    want = calls.kkt_solve(o.k, o.beta, calls.cumsum(o.g, o.plan, ctx=oracle), o.plan, ctx=oracle)
    g_cum = calls.cumsum(i.g, i.plan, ctx=OpCtx())
    assert_close(calls.kkt_solve(i.k, i.beta, g_cum, i.plan, ctx=OpCtx()), want)


@case
def wu_matches_float64() -> None:
    """Both products with the inverse."""
    i = Inputs.draw(LENGTHS, seed=8)
    *_, w, u = _chunked_stages(i, OpCtx())
    *_, want_w, want_u = _chunked_stages(i.in_float64(), oracle_context())
    assert_close(w, want_w)
    assert_close(u, want_u)


@case
def delta_h_keeps_states_and_snapshots() -> None:
    """The scan: its final states in the pool, and the snapshot after the first chunk."""
    i = Inputs.draw(LENGTHS, seed=9)
    o = i.in_float64()
    snapshots = plan_snapshots([TrackCopy(0, 64, 2)], i.plan)
    results = []
    for data, ctx in ((i, OpCtx()), (o, oracle_context())):
        g_cum, _, w, u = _chunked_stages(data, ctx)
        left = calls.delta_h(
            data.k, w, u, g_cum, data.pool, data.slots, data.kept, data.plan, snapshots=snapshots, ctx=ctx
        )
        assert left.snapshots is not None, "a snapshot plan was given"
        results.append((data.pool, left.snapshots, left.v_new.clone()))
    for ours, theirs in zip(*results, strict=True):
        assert_close(ours, theirs)


@case
def chunk_o_matches_float64() -> None:
    """Outputs of a prefill, from the states before each chunk and the tokens inside it."""
    i = Inputs.draw(LENGTHS, seed=10)
    outputs = []
    for data, ctx in ((i, OpCtx()), (i.fresh().in_float64(), oracle_context())):
        g_cum, _, w, u = _chunked_stages(data, ctx)
        left = calls.delta_h(data.k, w, u, g_cum, data.pool, data.slots, data.kept, data.plan, ctx=ctx)
        outputs.append(calls.chunk_o(data.q, data.k, left.v_new, left.h, g_cum, data.plan, ctx=ctx))
    assert_close(*outputs)


@case
def packed_decode_matches_float64() -> None:
    """One token of three sequences, the second of which is padding."""
    i = Inputs.draw((1, 1, 1), seed=11)
    slots = i.slots.clone()
    slots[1] = -1
    o = i.in_float64()
    ctx = OpCtx(phase=Phase.DECODE)
    got = calls.packed_decode(i.mixed, i.a, i.b, i.A_log, i.dt_bias, i.pool, slots, i.kept, ctx=ctx)
    want = calls.packed_decode(o.mixed, o.a, o.b, o.A_log, o.dt_bias, o.pool, slots, o.kept, ctx=oracle_context())
    assert_close(got, want)
    assert_close(i.pool, o.pool)


@case
def verify_decode_reads_and_never_writes_the_pool() -> None:
    """States after each draft of a tree; the sequence's own state stays."""
    i, parents = Inputs.draw((5,), seed=12), torch.tensor([-1, 0, 0, 1, 2])
    o, parents, before = i.in_float64(), parents.to(i.x.device), i.pool.clone()
    ctx = OpCtx(phase=Phase.VERIFY)
    got = calls.verify_decode(i.mixed, i.a, i.b, i.A_log, i.dt_bias, i.pool, i.slots, i.kept, parents, i.plan, ctx=ctx)
    want = calls.verify_decode(
        o.mixed, o.a, o.b, o.A_log, o.dt_bias, o.pool, o.slots, o.kept, parents, o.plan, ctx=oracle_context()
    )
    for ours, theirs in zip(got, want, strict=True):
        assert_close(ours, theirs)
    assert torch.equal(i.pool, before), "verify_decode wrote into the state pool"


@case
def rmsnorm_gated_matches_float64() -> None:
    """Norm before gate, per head."""
    i = Inputs.draw(LENGTHS, seed=13)
    o = i.in_float64()
    got = calls.rmsnorm_gated(i.v, i.z, i.norm, ctx=OpCtx())
    assert_close(got, calls.rmsnorm_gated(o.v, o.z, o.norm, ctx=oracle_context()))
