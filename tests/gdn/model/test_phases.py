"""The phases of a forward pass against each other, and what each leaves in the pools."""

from dataclasses import replace

import pytest
import torch

from gpu_runner.gdn.attention import lineages
from gpu_runner.gdn.batch import ForwardBatch, Phase, TrackCopy
from gpu_runner.gdn.cache.pools import Pools
from gpu_runner.gdn.config import Family
from gpu_runner.gdn.registry import OpCtx
from gpu_runner.gdn.sequence import Sequence
from gpu_runner.gdn.tiny import tiny_config, tiny_model

ROWS = 400
NEAR = {"atol": 2e-4, "rtol": 1e-3}


@pytest.fixture(scope="module", params=[Family.QWEN3_NEXT, Family.QWEN3_5])
def model(request):
    return tiny_model(tiny_config(request.param), seed=11)


@pytest.fixture
def pools(model):
    return Pools.allocate(model.config.pool_shape, rows=ROWS, slots=6, dtype=model.dtype)


def tokens_of(count, seed=0):
    return torch.randint(0, 64, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def batch_of(phase, new, prefixes, slots, bases, **more):
    """Sequences of the given new tokens after prefixes, whose KV rows begin at `bases`."""
    offsets = [0]
    for tokens in new:
        offsets.append(offsets[-1] + len(tokens))
    spans = list(zip(new, prefixes, bases, strict=True))
    return ForwardBatch(
        phase=phase,
        token_ids=torch.tensor([token for tokens in new for token in tokens]),
        positions=torch.cat([torch.arange(p, p + len(t)) for t, p, _ in spans]),
        cu_seqlens=offsets,
        state_slots=torch.tensor(slots),
        has_initial_state=torch.tensor([p > 0 for p in prefixes]),
        kv_write=torch.cat([torch.arange(base + p, base + p + len(t)) for t, p, base in spans]),
        kv_read=[torch.arange(base, base + p + len(t)) for t, p, base in spans],
        **more,
    )


def alone(model, tokens):
    sequence = Sequence(model, len(tokens), OpCtx())
    return sequence.logits(sequence.extend(tokens))


def test_packed_prefill_equals_each_sequence_alone(model, pools):
    new = [tokens_of(70, 1), tokens_of(1, 2), tokens_of(64, 3)]
    got = model.forward(batch_of(Phase.PREFILL, new, [0, 0, 0], [1, 2, 3], [0, 100, 200]), pools, OpCtx())
    torch.testing.assert_close(got, torch.stack([alone(model, tokens)[-1] for tokens in new]), **NEAR)


@pytest.mark.parametrize("cut", [1, 63, 64, 65])
def test_a_split_prefill_equals_the_whole(model, pools, cut):
    tokens = tokens_of(130, 4)
    model.forward(batch_of(Phase.PREFILL, [tokens[:cut]], [0], [1], [0]), pools, OpCtx())
    second = batch_of(Phase.PREFILL, [tokens[cut:]], [cut], [1], [0], logit_rows=torch.arange(130 - cut))
    got = model.forward(second, pools, OpCtx())
    torch.testing.assert_close(got, alone(model, tokens)[cut:], **NEAR)


def test_decode_equals_prefill(model, pools):
    prompts = [tokens_of(10, 5), tokens_of(66, 6)]
    model.forward(batch_of(Phase.PREFILL, [p[:-1] for p in prompts], [0, 0], [1, 2], [0, 100]), pools, OpCtx())
    step = batch_of(Phase.DECODE, [p[-1:] for p in prompts], [9, 65], [1, 2], [0, 100])
    got = model.forward(step, pools, OpCtx())
    torch.testing.assert_close(got, torch.stack([alone(model, p)[-1] for p in prompts]), **NEAR)


def test_a_mixed_batch_steps_and_chunks(model, pools):
    first, second = tokens_of(30, 7), tokens_of(12, 8)
    model.forward(batch_of(Phase.PREFILL, [first[:-1]], [0], [1], [0]), pools, OpCtx())
    mixed = batch_of(Phase.MIXED, [second, first[-1:]], [0, 29], [2, 1], [100, 0])
    got = model.forward(mixed, pools, OpCtx())
    torch.testing.assert_close(got, torch.stack([alone(model, second)[-1], alone(model, first)[-1]]), **NEAR)
    after = batch_of(Phase.DECODE, [[1], [2]], [12, 30], [2, 1], [100, 0])
    want = torch.stack([alone(model, [*second, 1])[-1], alone(model, [*first, 2])[-1]])
    torch.testing.assert_close(model.forward(after, pools, OpCtx()), want, **NEAR)


def test_a_stepped_sequence_of_a_mixed_batch_keeps_its_checkpoint(model, pools):
    first, second = tokens_of(8, 17), tokens_of(5, 18)
    model.forward(batch_of(Phase.PREFILL, [first[:-1]], [0], [1], [0]), pools, OpCtx())
    tracks = [TrackCopy(1, 1, 3), TrackCopy(0, 5, 4)]
    mixed = batch_of(Phase.MIXED, [second, first[-1:]], [0, 7], [2, 1], [100, 0], tracks=tracks)
    model.forward(mixed, pools, OpCtx())
    for kept, own in ((3, 1), (4, 2)):
        assert torch.equal(pools.temporal[:, kept], pools.temporal[:, own])
        assert torch.equal(pools.conv[:, kept], pools.conv[:, own])


def test_each_branch_of_a_tree_equals_its_own_chain_and_an_accepted_path_continues(model, pools):
    prompt = tokens_of(20, 9)
    model.forward(batch_of(Phase.PREFILL, [prompt], [0], [1], [0]), pools, OpCtx())
    before = pools.temporal.clone(), pools.conv.clone()
    drafts, parents = [5, 6, 7, 8, 9], [-1, 0, 0, 2, 1]
    depth = [len(line) - 1 for line in lineages(parents)]
    batch = batch_of(Phase.VERIFY, [drafts], [20], [1], [0], parents=torch.tensor(parents))
    batch = replace(batch, positions=20 + torch.tensor(depth))
    output = model.run(batch, pools, OpCtx())
    assert torch.equal(pools.temporal, before[0])
    assert torch.equal(pools.conv, before[1])
    got = model.logits(output.hidden, OpCtx())
    for node, line in enumerate(lineages(parents)):
        path = [drafts[ancestor] for ancestor in line]
        torch.testing.assert_close(got[node], alone(model, prompt + path)[-1], **NEAR)
    path = [0, 2, 3]
    model.commit(output, batch, pools, [path])
    accepted = [drafts[node] for node in path]
    rows = torch.tensor([*range(20), *(20 + node for node in path), 50])
    step = replace(batch_of(Phase.DECODE, [[3]], [23], [1], [0]), kv_read=[rows], kv_write=torch.tensor([50]))
    want = alone(model, [*prompt, *accepted, 3])[-1:]
    torch.testing.assert_close(model.forward(step, pools, OpCtx()), want, **NEAR)


def test_a_verify_pass_without_parents_is_refused(model, pools):
    batch = batch_of(Phase.VERIFY, [[1, 2]], [0], [1], [0])
    with pytest.raises(ValueError, match="parents"):
        model.forward(batch, pools, OpCtx())


@pytest.mark.parametrize("length", [2, 64, 128, 140])
def test_a_checkpoint_holds_the_state_after_its_length(model, pools, length):
    total = 140 if length != 2 else 2
    tokens = tokens_of(total, 10)
    tracked = batch_of(Phase.PREFILL, [tokens], [0], [1], [0], tracks=[TrackCopy(0, length, 3)])
    model.forward(tracked, pools, OpCtx())
    model.forward(batch_of(Phase.PREFILL, [tokens[:length]], [0], [2], [200]), pools, OpCtx())
    torch.testing.assert_close(pools.temporal[:, 3], pools.temporal[:, 2], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(pools.conv[:, 3], pools.conv[:, 2], atol=1e-5, rtol=1e-4)


def test_fault_checkpoints_inside_a_prefill_are_rounded(monkeypatch):
    """In bfloat16, fault on: the checkpoint inside the prefill is what chunk_o reads; at its end it is still exact."""
    model = tiny_model(tiny_config(), seed=11, dtype=torch.bfloat16)
    pools = Pools.allocate(model.config.pool_shape, rows=200, slots=6, dtype=model.dtype)
    tokens = tokens_of(80, 12)
    for slot, fault in ((3, ""), (4, "h_snapshot_bf16")):
        monkeypatch.setenv("LIKEWISE_GDN_FAULT", fault)
        tracks = [TrackCopy(0, 64, slot), TrackCopy(0, 80, slot + 2)]
        model.forward(batch_of(Phase.PREFILL, [tokens], [0], [1], [0], tracks=tracks), pools, OpCtx())
    exact, rounded = pools.temporal[:, 3], pools.temporal[:, 4]
    assert not torch.equal(exact, rounded)
    assert torch.equal(exact.bfloat16().float(), rounded)
    assert torch.equal(pools.temporal[:, 5], pools.temporal[:, 6])


def test_decode_copies_states_to_its_checkpoint_slots(model, pools):
    prompts = [tokens_of(5, 13), tokens_of(6, 14)]
    model.forward(batch_of(Phase.PREFILL, prompts, [0, 0], [1, 2], [0, 100]), pools, OpCtx())
    untouched = pools.temporal[:, 4].clone()
    step = batch_of(Phase.DECODE, [[1], [2]], [5, 6], [1, 2], [0, 100], decode_track_slots=torch.tensor([3, -1]))
    model.forward(step, pools, OpCtx())
    assert torch.equal(pools.temporal[:, 3], pools.temporal[:, 1])
    assert torch.equal(pools.conv[:, 3], pools.conv[:, 1])
    assert torch.equal(pools.temporal[:, 4], untouched)


@pytest.mark.parametrize("phase", [Phase.DECODE, Phase.PREFILL])
def test_padding_touches_nothing(model, pools, phase):
    prompt = tokens_of(6, 15)
    model.forward(batch_of(Phase.PREFILL, [prompt], [0], [1], [0]), pools, OpCtx())
    before = [tensor.clone() for tensor in (pools.temporal[:, 2:], pools.conv[:, 2:], pools.kv_k[:, 7:])]
    padded = batch_of(phase, [[1], [2]], [6, 0], [1, -1], [0, 100])
    padded.kv_write[1] = -1
    got = model.forward(padded, pools, OpCtx())
    torch.testing.assert_close(got[:1], alone(model, [*prompt, 1])[-1:], **NEAR)
    after = (pools.temporal[:, 2:], pools.conv[:, 2:], pools.kv_k[:, 7:])
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cuts", [(100,), (64,), (64, 200), (64, 128, 129)])
def test_in_deterministic_mode_a_row_has_the_same_bits_in_any_prefill(dtype, cuts):
    """Cuts at multiples of 64 and any total length: the bits of a token depend on what stands before it alone."""
    model, ctx = tiny_model(tiny_config(), seed=12, dtype=dtype), OpCtx(deterministic=True)
    tokens = tokens_of(200, 16)
    whole, parts = Sequence(model, 200, ctx), Sequence(model, 200, ctx)
    want = whole.logits(whole.extend(tokens))
    hidden = [parts.extend(tokens[start:end]) for start, end in zip((0, *cuts), cuts, strict=False)]
    got = parts.logits(torch.cat(hidden))
    assert torch.equal(got, want[: cuts[-1]])


def test_a_sequence_refuses_what_does_not_fit(model):
    sequence = Sequence(model, 4, OpCtx())
    sequence.extend([1, 2, 3])
    with pytest.raises(ValueError, match="capacity of 4"):
        sequence.extend([4, 5])
    with pytest.raises(ValueError, match="no tokens"):
        sequence.extend([])
