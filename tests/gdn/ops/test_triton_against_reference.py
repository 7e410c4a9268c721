"""Every Triton realization, interpreted, against the hand path: odd sizes, NaN in every buffer nobody wrote."""

import pytest
import torch

from gpu_runner.gdn.batch import TrackCopy
from gpu_runner.gdn.ops import calls
from gpu_runner.gdn.ops.plan import plan_chunks, plan_snapshots
from gpu_runner.gdn.registry import Realization
from tests.gdn.ops.cases import context, make_case

pytestmark = pytest.mark.usefixtures("interpreter", "poisoned")

F32, BF16 = torch.float32, torch.bfloat16
BF16_ERROR = 1e-3
"""Relative Frobenius error: a few last bits (2^-9 each) of what two realizations round at the same places."""
EXACT = {"atol": 2e-6, "rtol": 1e-5}
SUMS = {"atol": 2e-5, "rtol": 1e-5}

# lengths, key heads, value heads, head dimension
SHAPES = [
    pytest.param((1,), 1, 1, 16, F32, id="one token"),
    pytest.param((63,), 1, 2, 32, F32, id="63"),
    pytest.param((65, 1, 0, 20), 1, 1, 16, F32, id="65, 1, 0, 20"),
    pytest.param((100,), 1, 3, 16, BF16, id="100 in bf16"),
    pytest.param((65,), 2, 2, 24, BF16, id="24 wide in bf16"),
]


def both(function, *args, mutated=(), **options):
    """The results of the hand path and of Triton, each on its own copy of the tensors it mutates."""
    results = []
    for realization in (Realization.TORCH, Realization.TRITON):
        ctx = context(realization)
        copies = {id(t): t.clone() for t in mutated}
        out = function(*[copies.get(id(a), a) for a in args], ctx=ctx, **options)
        parts = list(out) if isinstance(out, tuple) else [out]
        counts = ctx.counters.by_layer_and_phase()
        assert [outcome for _, outcome, _, _ in counts] == [f"{realization}.fired"], counts
        results.append([*parts, *copies.values()])
    return results


def assert_close(found, dtype=F32, **tolerance):
    for wanted, got in zip(*found, strict=True):
        assert got.dtype == wanted.dtype
        if dtype == F32:
            torch.testing.assert_close(got, wanted, **(tolerance or EXACT))
        else:
            error = (got.double() - wanted.double()).norm() / wanted.double().norm()
            assert error <= BF16_ERROR, f"relative error {error}"


def slots_for(lengths):
    """Slots and has_initial_state: the second sequence is padding, the third starts anew."""
    return tuple([4, -1, 2, 0][: len(lengths)]), tuple([True, True, False, True][: len(lengths)])


@pytest.mark.parametrize(("lengths", "H", "HV", "D", "dtype"), SHAPES)
def test_prefill_stages(lengths, H, HV, D, dtype):
    slots, kept = slots_for(lengths)
    case = make_case(lengths, key_heads=H, value_heads=HV, head_dim=D, dtype=dtype, slots=slots, kept=kept)
    assert_close(both(calls.gating, case.a, case.b, case.A_log, case.dt_bias))
    g, beta = calls.gating(case.a, case.b, case.A_log, case.dt_bias, ctx=context())
    assert_close(both(calls.l2norm, case.q), dtype)
    q, k = calls.l2norm(case.q, ctx=context()), calls.l2norm(case.k, ctx=context())
    assert_close(both(calls.cumsum, g, case.plan), **SUMS)
    g_cum = calls.cumsum(g, case.plan, ctx=context())
    assert_close(both(calls.kkt_solve, k, beta, g_cum, case.plan), dtype)
    A = calls.kkt_solve(k, beta, g_cum, case.plan, ctx=context())
    assert_close(both(calls.wu, k, case.v, beta, g_cum, A, case.plan), dtype)
    w, u = calls.wu(k, case.v, beta, g_cum, A, case.plan, ctx=context())

    def scan(pool, *, ctx):
        states = calls.delta_h(k, w, u, g_cum, pool, case.slots, case.kept, case.plan, ctx=ctx)
        return states.h, states.v_new

    assert_close(both(scan, case.pool, mutated=[case.pool]), dtype)
    untouched = [s for s in range(6) if s not in slots]
    states = calls.delta_h(k, w, u, g_cum, case.pool.clone(), case.slots, case.kept, case.plan, ctx=context())
    assert_close(both(calls.chunk_o, q, k, states.v_new, states.h, g_cum, case.plan), dtype)
    after = both(scan, case.pool, mutated=[case.pool])[1][-1]
    assert torch.equal(after[untouched], case.pool[untouched])


@pytest.mark.parametrize(("lengths", "H", "HV", "D", "dtype"), SHAPES)
def test_convolution(lengths, H, HV, D, dtype):
    slots, kept = slots_for(lengths)
    case = make_case(lengths, key_heads=H, value_heads=HV, head_dim=D, dtype=dtype, slots=slots, kept=kept)
    found = both(
        calls.conv1d,
        case.x,
        case.conv_weight,
        case.conv_pool,
        case.slots,
        case.kept,
        case.plan,
        mutated=[case.conv_pool],
    )
    assert_close(found, dtype)
    assert torch.equal(found[0][1], found[1][1]), "the pool holds raw inputs, which nobody computes"
    rows = case.x[: len(lengths)]
    if rows.shape[0] == len(lengths):
        found = both(
            calls.conv1d_update, rows, case.conv_weight, case.conv_pool, case.slots, case.kept, mutated=[case.conv_pool]
        )
        assert_close(found, dtype)
        assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize(("H", "HV", "D", "dtype"), [(1, 1, 16, F32), (1, 3, 24, F32), (2, 2, 32, BF16)])
def test_decode(H, HV, D, dtype):
    case = make_case((1, 1, 1), key_heads=H, value_heads=HV, head_dim=D, dtype=dtype)
    found = both(
        calls.packed_decode, case.x, case.a, case.b, case.A_log, case.dt_bias, case.pool, case.slots, case.kept,
        mutated=[case.pool],
    )  # fmt: skip
    assert_close([found[0][:1], found[1][:1]], dtype)
    assert_close([found[0][1:], found[1][1:]])
    assert (found[1][0][1] == 0).all(), "slot -1 gives zeros"
    assert torch.equal(found[1][1][[0, 1, 3, 5]], case.pool[[0, 1, 3, 5]])


@pytest.mark.parametrize(("H", "HV", "D", "dtype"), [(1, 2, 16, F32), (1, 1, 24, BF16)])
def test_verification_of_trees(H, HV, D, dtype):
    case = make_case((5, 2, 4), key_heads=H, value_heads=HV, head_dim=D, dtype=dtype)
    parents = torch.tensor([-1, 0, 0, 1, 2, -1, 0, -1, -1, 1, 2])
    pools = case.conv_pool.clone(), case.pool.clone()
    state = (case.slots, case.kept, parents, case.plan)
    assert_close(both(calls.conv1d_verify, case.x, case.conv_weight, case.conv_pool, *state), dtype)
    found = both(calls.verify_decode, case.x, case.a, case.b, case.A_log, case.dt_bias, case.pool, *state)
    assert_close([found[0][:1], found[1][:1]], dtype)
    assert_close([found[0][1:], found[1][1:]])
    assert torch.equal(case.conv_pool, pools[0])
    assert torch.equal(case.pool, pools[1])


@pytest.mark.parametrize(("D", "dtype"), [(16, F32), (24, BF16)])
def test_gated_norm(D, dtype):
    case = make_case((13,), head_dim=D, dtype=dtype, slots=(1,), kept=(True,))
    assert_close(both(calls.rmsnorm_gated, case.v, case.z, case.norm, eps=1e-5), dtype)


def prefill(case, ctx, snapshots=None):
    g, beta = calls.gating(case.a, case.b, case.A_log, case.dt_bias, ctx=ctx)
    q, k = calls.l2norm(case.q, ctx=ctx), calls.l2norm(case.k, ctx=ctx)
    g_cum = calls.cumsum(g, case.plan, ctx=ctx)
    A = calls.kkt_solve(k, beta, g_cum, case.plan, ctx=ctx)
    w, u = calls.wu(k, case.v, beta, g_cum, A, case.plan, ctx=ctx)
    state = (case.pool, case.slots, case.kept, case.plan)
    states = calls.delta_h(k, w, u, g_cum, *state, snapshots=snapshots, ctx=ctx)
    return calls.chunk_o(q, k, states.v_new, states.h, g_cum, case.plan, ctx=ctx), states


def test_state_carried_over_a_split_gives_the_same_bits():
    whole = make_case((100,), value_heads=1, slots=(2,), kept=(True,))
    split = make_case((100,), value_heads=1, slots=(2,), kept=(True,))
    o, _ = prefill(whole, context(Realization.TRITON))
    tensors = {name: getattr(split, name) for name in ("q", "k", "v", "a", "b")}
    outputs = []
    for start, end in ((0, 64), (64, 100)):
        for name, tensor in tensors.items():
            setattr(split, name, tensor[start:end])
        split.plan = plan_chunks([0, end - start])
        outputs.append(prefill(split, context(Realization.TRITON))[0])
    assert torch.equal(torch.cat(outputs), o)
    assert torch.equal(whole.pool, split.pool)


def test_float32_snapshots_of_inner_states():
    tracks = [TrackCopy(0, 64, 1)]
    found = []
    for realization in (Realization.TORCH, Realization.TRITON):
        case = make_case((100,), value_heads=1, slots=(2,), kept=(True,), dtype=BF16)
        states = prefill(case, context(realization), plan_snapshots(tracks, case.plan))[1]
        assert states.snapshots.dtype == F32
        found.append([states.snapshots])
        rounded = states.h[1].float()
        assert not torch.equal(states.snapshots[0], rounded), "the snapshot was not rounded"
        torch.testing.assert_close(states.snapshots[0], rounded, atol=0, rtol=2**-8)
    assert_close(found, BF16)


def test_a_chain_verifies_to_the_bits_of_decode():
    case = make_case((3,), value_heads=1, slots=(2,), kept=(True,))
    ctx = context(Realization.TRITON)
    gates = (case.A_log, case.dt_bias)
    parents = torch.tensor([-1, 0, 1])
    mixed = calls.conv1d_verify(
        case.x, case.conv_weight, case.conv_pool, case.slots, case.kept, parents, case.plan, ctx=ctx
    )
    o, snapshots = calls.verify_decode(
        mixed, case.a, case.b, *gates, case.pool, case.slots, case.kept, parents, case.plan, ctx=ctx
    )
    for t in range(3):
        row = slice(t, t + 1)
        one = calls.conv1d_update(case.x[row], case.conv_weight, case.conv_pool, case.slots, case.kept, ctx=ctx)
        out = calls.packed_decode(one, case.a[row], case.b[row], *gates, case.pool, case.slots, case.kept, ctx=ctx)
        assert torch.equal(out, o[row])
        assert torch.equal(case.pool[2], snapshots[t])


def test_identical_keys_do_not_blow_the_inverse_up():
    case = make_case((64,), value_heads=1, slots=(2,), kept=(False,))
    k = calls.l2norm(case.k[:1].expand_as(case.k).contiguous(), ctx=context())
    zeros = torch.zeros_like(case.a, dtype=F32).contiguous()
    found = both(calls.kkt_solve, k, zeros + 1, zeros, case.plan)
    assert_close(found)
    wanted = torch.eye(64) - torch.eye(64).roll(1, 0).tril(-1)
    torch.testing.assert_close(found[1][0][0, 0], wanted, atol=1e-5, rtol=0)


def test_strong_decay_gives_no_infinity():
    case = make_case((70,), value_heads=1, slots=(2,), kept=(True,))
    case.a = torch.full_like(case.a, 60.0)
    o, states = prefill(case, context(Realization.TRITON))
    for tensor in (o, states.h, states.v_new, case.pool):
        assert torch.isfinite(tensor).all()
