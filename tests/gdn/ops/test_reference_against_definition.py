"""The hand path against the definition, one token at a time in float64."""

import pytest
import torch

from gpu_runner.gdn.batch import Phase, TrackCopy
from gpu_runner.gdn.ops import calls
from gpu_runner.gdn.ops.errors import ShapeError
from gpu_runner.gdn.ops.plan import plan_chunks, plan_snapshots
from gpu_runner.gdn.ops.reference.sequential import sequential
from gpu_runner.gdn.ops.verify import commit_path, conv_window
from tests.gdn.ops.cases import context, make_case

HEADS = [(1, 1), (2, 4), (1, 3)]


def chunked(case, ctx, snapshots=None):
    """Outputs and states of the chunked form from raw q, k, v."""
    g, beta = calls.gating(case.a, case.b, case.A_log, case.dt_bias, ctx=ctx)
    q, k = calls.l2norm(case.q, ctx=ctx), calls.l2norm(case.k, ctx=ctx)
    g_cum = calls.cumsum(g, case.plan, ctx=ctx)
    A = calls.kkt_solve(k, beta, g_cum, case.plan, ctx=ctx)
    w, u = calls.wu(k, case.v, beta, g_cum, A, case.plan, ctx=ctx)
    states = calls.delta_h(k, w, u, g_cum, case.pool, case.slots, case.kept, case.plan, snapshots=snapshots, ctx=ctx)
    return calls.chunk_o(q, k, states.v_new, states.h, g_cum, case.plan, ctx=ctx), states, g, beta


def definition(case, g, beta, pool):
    """Per sequence: outputs and the states after each token."""
    for n in range(case.plan.sequences):
        rows = slice(case.plan.cu_seqlens[n], case.plan.cu_seqlens[n + 1])
        begins = case.slots[n] >= 0 and case.kept[n]
        state = pool[case.slots[n]] if begins else torch.zeros_like(pool[0])
        yield n, rows, sequential(case.q[rows], case.k[rows], case.v[rows], g[rows], beta[rows], state)


@pytest.mark.parametrize(("key_heads", "value_heads"), HEADS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 5e-6), (torch.bfloat16, 3e-2)]
)
def test_the_chunked_form_equals_the_recurrence(key_heads, value_heads, dtype, tolerance, poisoned):
    case = make_case(
        (1, 63, 64, 65, 150), key_heads=key_heads, value_heads=value_heads, dtype=dtype, slots=(0, 5, -1, 2, 3),
        kept=(True, False, True, True, True),
    )  # fmt: skip
    before = case.pool.clone()
    o, _, g, beta = chunked(case, context())
    for n, rows, (outputs, states) in definition(case, g, beta, before):
        torch.testing.assert_close(o[rows].double(), outputs, atol=tolerance, rtol=0)
        if case.slots[n] >= 0:
            torch.testing.assert_close(case.pool[case.slots[n]].double(), states[-1], atol=tolerance, rtol=0)
    untouched = [1, 4]
    assert torch.equal(case.pool[untouched], before[untouched])


def test_snapshots_are_the_states_at_the_ends_of_chunks():
    case = make_case((150, 65), slots=(1, 2), kept=(True, True))
    before = case.pool.clone()
    tracks = [TrackCopy(0, 64, 4), TrackCopy(0, 128, 5), TrackCopy(1, 64, 3), TrackCopy(1, 65, 0)]
    plan = plan_snapshots(tracks, case.plan)
    assert plan.final == (tracks[3],)
    _, found, g, beta = chunked(case, context(), plan)
    wanted = {n: states for n, _, (_, states) in definition(case, g, beta, before)}
    for row, track in enumerate(plan.tracks):
        torch.testing.assert_close(
            found.snapshots[row].double(), wanted[track.sequence][track.length - 1], atol=5e-6, rtol=0
        )


@pytest.mark.parametrize("length", [0, 63, 65, 151])
def test_a_checkpoint_inside_a_chunk_is_refused(length):
    with pytest.raises(ShapeError, match="inside a chunk"):
        plan_snapshots([TrackCopy(0, length, 1)], plan_chunks([0, 150]))


def test_a_prompt_cut_at_a_multiple_of_64_gives_the_same_bits():
    whole = make_case((150,), slots=(2,), kept=(False,))
    o, _, _, _ = chunked(whole, context())
    parts = make_case((150,), slots=(2,), kept=(False,))
    outputs = []
    for start, end in ((0, 64), (64, 150)):
        part = make_case((end - start,), slots=(2,), kept=(start > 0,))
        part.q, part.k, part.v = (t[start:end] for t in (parts.q, parts.k, parts.v))
        part.a, part.b, part.pool = parts.a[start:end], parts.b[start:end], parts.pool
        part.A_log, part.dt_bias = parts.A_log, parts.dt_bias
        outputs.append(chunked(part, context())[0])
    assert torch.equal(torch.cat(outputs), o)
    assert torch.equal(parts.pool[2], whole.pool[2])


def test_a_sequence_gives_the_same_bits_alone_and_in_a_batch():
    for dtype in (torch.float32, torch.bfloat16):
        batch = make_case((65, 100, 7), slots=(1, 2, 3), kept=(True, True, True), dtype=dtype)
        alone = make_case((65, 100, 7), slots=(1, 2, 3), kept=(True, True, True), dtype=dtype)
        rows = slice(65, 165)
        alone.plan, alone.slots, alone.kept = plan_chunks([0, 100]), alone.slots[1:2], alone.kept[1:2]
        for name in ("q", "k", "v", "a", "b"):
            setattr(alone, name, getattr(alone, name)[rows])
        assert torch.equal(chunked(batch, context())[0][rows], chunked(alone, context())[0])
        assert torch.equal(batch.pool[2], alone.pool[2])


def test_identical_keys_do_not_blow_the_inverse_up():
    case = make_case((64,), slots=(1,), kept=(False,))
    case.k = case.k[:1].expand_as(case.k).contiguous()
    case.a, case.b = torch.full_like(case.a, -30.0), torch.full_like(case.b, 30.0)
    before = case.pool.clone()
    o, _, g, beta = chunked(case, context())
    for _, _, (outputs, _) in definition(case, g, beta, before):
        torch.testing.assert_close(o.double(), outputs, atol=1e-4, rtol=0)


def test_strong_decay_gives_no_infinity():
    case = make_case((100,), slots=(1,), kept=(True,))
    case.a = torch.full_like(case.a, 60.0)
    o, _, _, _ = chunked(case, context())
    assert torch.isfinite(o).all()
    assert torch.isfinite(case.pool).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_verified_chain_equals_decode_bit_for_bit(dtype):
    case = make_case((4, 4, 4), value_heads=3, dtype=dtype, kept=(True, True, True))
    ctx = context(phase=Phase.VERIFY)
    parents = torch.tensor([-1, 0, 1, 2] * 3)
    mixed = calls.conv1d_verify(
        case.x, case.conv_weight, case.conv_pool, case.slots, case.kept, parents, case.plan, ctx=ctx
    )
    gates = (case.A_log, case.dt_bias)
    o, snapshots = calls.verify_decode(
        mixed, case.a, case.b, *gates, case.pool, case.slots, case.kept, parents, case.plan, ctx=ctx
    )
    pools = case.pool.clone(), case.conv_pool.clone()
    commit_path([[0, 1, 2, 3], [4], [8, 9]], snapshots, case.x, *pools, case.slots, has_initial_state=case.kept)
    for t in range(4):
        rows = torch.tensor([t, 4 + t, 8 + t])
        one = calls.conv1d_update(case.x[rows], case.conv_weight, case.conv_pool, case.slots, case.kept, ctx=ctx)
        out = calls.packed_decode(one, case.a[rows], case.b[rows], *gates, case.pool, case.slots, case.kept, ctx=ctx)
        assert torch.equal(out[[0, 2]], o[rows[[0, 2]]])
        assert (out[1] == 0).all() and (o[rows[1]] == 0).all()
        if t == 1:
            assert torch.equal(case.pool[2], pools[0][2])
            assert torch.equal(case.conv_pool[2], pools[1][2])
    assert torch.equal(case.pool[4], pools[0][4])
    assert torch.equal(case.conv_pool[4], pools[1][4])
    assert torch.equal(case.pool[[0, 1, 3, 5]], pools[0][[0, 1, 3, 5]])


def test_each_branch_of_a_draft_tree_equals_its_own_chain():
    case = make_case((5,), slots=(3,), kept=(True,))
    before = case.pool.clone(), case.conv_pool.clone()
    ctx = context(phase=Phase.VERIFY)
    #      0 -> 1 -> 3
    #        -> 2 -> 4
    parents = torch.tensor([-1, 0, 0, 1, 2])
    mixed = calls.conv1d_verify(
        case.x, case.conv_weight, case.conv_pool, case.slots, case.kept, parents, case.plan, ctx=ctx
    )
    o, snapshots = calls.verify_decode(
        mixed, case.a, case.b, case.A_log, case.dt_bias, case.pool, case.slots, case.kept, parents, case.plan, ctx=ctx
    )
    assert torch.equal(case.pool, before[0]), "verification only reads"
    assert torch.equal(case.conv_pool, before[1])
    for path in ([0, 1, 3], [0, 2, 4]):
        rows, pool, conv_pool = torch.tensor(path), before[0].clone(), before[1].clone()
        chain, plan = torch.tensor([-1, 0, 1]), plan_chunks([0, 3])
        state = (case.slots, case.kept, chain, plan)
        convolved = calls.conv1d_verify(case.x[rows], case.conv_weight, conv_pool, *state, ctx=ctx)
        alone, states = calls.verify_decode(
            convolved, case.a[rows], case.b[rows], case.A_log, case.dt_bias, pool, *state, ctx=ctx
        )
        assert torch.equal(alone, o[rows])
        assert torch.equal(states, snapshots[rows])
        commit_path([path], snapshots, case.x, pool, conv_pool, case.slots, has_initial_state=case.kept)
        assert torch.equal(pool[3], states[-1])
        assert torch.equal(conv_pool[3], case.x[rows].t())


def test_an_empty_path_commits_nothing():
    case = make_case((2,), slots=(3,), kept=(True,))
    before = case.pool.clone(), case.conv_pool.clone()
    snapshots = torch.zeros(2, *case.pool.shape[1:])
    commit_path([[]], snapshots, case.x, case.pool, case.conv_pool, case.slots, has_initial_state=case.kept)
    commit_path(
        [[0]], snapshots, case.x, case.pool, case.conv_pool, case.slots, has_initial_state=case.kept,
        destinations=torch.tensor([-1]),
    )  # fmt: skip
    assert torch.equal(case.pool, before[0])
    assert torch.equal(case.conv_pool, before[1])


@pytest.mark.parametrize("length", [1, 2, 3, 65])
def test_the_convolution_equals_its_definition(length):
    case = make_case((length,), slots=(1,), kept=(True,), dtype=torch.float64)
    history = case.conv_pool[1].t().clone()
    window = conv_window(case.x, case.conv_pool, 1, start=0, length=length, has_initial_state=True)
    y = calls.conv1d(case.x, case.conv_weight, case.conv_pool, case.slots, case.kept, case.plan, ctx=context())
    inputs = torch.cat([history, case.x])
    wanted = torch.nn.functional.conv1d(
        inputs.t()[None], case.conv_weight[:, None], groups=inputs.shape[1]
    )[0].t()  # fmt: skip
    torch.testing.assert_close(y, torch.nn.functional.silu(wanted), atol=1e-12, rtol=0)
    assert torch.equal(case.conv_pool[1], inputs[-3:].t())
    assert torch.equal(window, inputs[-3:].t())


def test_an_empty_sequence_keeps_its_state():
    case = make_case((0, 3), slots=(1, 2), kept=(True, True))
    before = case.pool.clone(), case.conv_pool.clone()
    calls.conv1d(case.x, case.conv_weight, case.conv_pool, case.slots, case.kept, case.plan, ctx=context())
    chunked(case, context())
    assert torch.equal(case.pool[1], before[0][1])
    assert torch.equal(case.conv_pool[1], before[1][1])
    assert not torch.equal(case.pool[2], before[0][2])


def test_the_gated_norm_equals_its_definition():
    case = make_case(dtype=torch.float64)
    o = case.v.contiguous()
    y = calls.rmsnorm_gated(o, case.z, case.norm, eps=1e-5, ctx=context())
    wanted = torch.nn.functional.rms_norm(o, o.shape[-1:], case.norm, 1e-5) * torch.nn.functional.silu(case.z)
    torch.testing.assert_close(y, wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("offsets", [[], [1, 2], [0, 5, 3]])
def test_offsets_that_do_not_rise_from_zero_are_refused(offsets):
    with pytest.raises(ShapeError, match="cu_seqlens"):
        plan_chunks(offsets)


def test_tensors_that_do_not_fit_are_refused():
    case, ctx = make_case(), context()
    with pytest.raises(ShapeError, match="value heads differ"):
        calls.gating(case.a[:, :1], case.b, case.A_log, case.dt_bias, ctx=ctx)
    with pytest.raises(ShapeError, match="multiple of key heads"):
        calls.kkt_solve(case.k.expand(-1, 3, -1), case.a, case.a, case.plan, ctx=ctx)
    with pytest.raises(ShapeError, match="channels"):
        calls.conv1d(case.x[:, 1:], case.conv_weight, case.conv_pool, case.slots, case.kept, case.plan, ctx=ctx)
    with pytest.raises(ShapeError, match="slots"):
        calls.conv1d_update(case.x, case.conv_weight, case.conv_pool, case.slots, case.kept, ctx=ctx)
    with pytest.raises(ShapeError, match="pool"):
        calls.packed_decode(
            case.x[:3], case.a[:3], case.b[:3], case.A_log, case.dt_bias, case.pool[:, :1], case.slots, case.kept,
            ctx=ctx,
        )  # fmt: skip
    with pytest.raises(ShapeError, match="hold"):
        calls.packed_decode(
            case.x[:3, 1:], case.a[:3], case.b[:3], case.A_log, case.dt_bias, case.pool, case.slots, case.kept, ctx=ctx
        )
    with pytest.raises(ShapeError, match="parents"):
        calls.conv1d_verify(
            case.x, case.conv_weight, case.conv_pool, case.slots, case.kept, case.slots, case.plan, ctx=ctx
        )
    with pytest.raises(ShapeError, match="weight"):
        calls.rmsnorm_gated(case.v, case.z, case.norm[1:], ctx=ctx)
