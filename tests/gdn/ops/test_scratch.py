"""Who owns intermediate memory, what its bytes may be, and the faults that once got this wrong."""

import pytest
import torch

from gpu_runner.gdn.counters import Counters
from gpu_runner.gdn.ops import calls
from gpu_runner.gdn.ops.errors import StaleScratchError
from gpu_runner.gdn.ops.scratch import ScratchPools
from gpu_runner.gdn.registry import OpCtx, Realization
from tests.gdn.ops.cases import make_case
from tests.gdn.ops.test_triton_against_reference import prefill

F32 = torch.float32


@pytest.fixture
def counters():
    return Counters()


@pytest.fixture
def pools(counters):
    return ScratchPools(counters)


@pytest.fixture
def fault(monkeypatch):
    return lambda *names: monkeypatch.setenv("LIKEWISE_GDN_FAULT", ",".join(names))


def output(scratch, lengths=(40,), seed=1):
    """A prefill's outputs on this scratch, by the hand path."""
    case = make_case(lengths, value_heads=2, slots=range(len(lengths)), kept=[True] * len(lengths), seed=seed)
    return prefill(case, OpCtx(scratch=scratch, counters=Counters()))[0]


def counts(counters):
    return {name: n for name, n in counters.flat((), ()).items() if name.startswith("gdn.scratch")}


def test_a_gpu_without_an_index_is_the_current_one(pools, monkeypatch):
    # Memory says "cuda:3" when it is asked where it is: a queue on "cuda" would never find its blocks again.
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    scratch = pools.open_queue("cuda")
    assert scratch == pools.of_stream("cuda:3", 1)
    pools.release("cuda", 1)
    assert not pools.is_open(scratch.device, scratch.stream, scratch.generation)


def test_a_buffer_is_reused_and_grows(pools, counters):
    scratch = pools.open_queue()
    first = scratch.empty("w", (10, 100), F32)
    assert scratch.empty("w", (5, 100), F32).data_ptr() == first.data_ptr()
    assert scratch.empty("w", (50, 100), F32).data_ptr() != first.data_ptr()
    assert counts(counters) == {
        "gdn.scratch.allocations": 2, "gdn.scratch.growths": 1, "gdn.scratch.reuses": 1,
    }  # fmt: skip


def test_an_outgrown_buffer_stays_with_whoever_captured_it(pools):
    scratch = pools.open_queue()
    captured = scratch.empty("w", (1024,), F32).fill_(7)
    scratch.empty("w", (4096,), F32).zero_()
    scratch.empty("u", (1024,), F32).zero_()
    assert (captured == 7).all()


def test_fault_growing_frees_a_captured_buffer(pools, fault):
    fault("grow_frees_captured")
    scratch = pools.open_queue()
    captured = scratch.empty("w", (1024,), F32).fill_(7)
    scratch.empty("w", (4096,), F32).zero_()
    assert (captured == 7).all(), "with one user nothing is seen"
    scratch.empty("u", (1024,), F32).zero_()
    assert (captured == 0).all()


def test_a_closed_queue_is_stale_and_its_handle_a_new_generation(pools):
    old = pools.open_queue()
    old.close()
    with pools.open_queue() as new:
        assert (new.stream, new.generation > old.generation) == (old.stream, True)
        new.empty("w", (1,), F32)
        with pytest.raises(StaleScratchError, match="was released"):
            old.empty("w", (1,), F32)


def test_releasing_one_stream_leaves_the_others(pools):
    kept, other, elsewhere = pools.open_queue(), pools.open_queue(), pools.open_queue("cpu:1")
    assert (kept.stream, other.stream, elsewhere.stream) == (1, 2, 1)
    w = kept.empty("w", (1024,), F32).fill_(7)
    other.close()
    elsewhere.close()
    pools.open_queue().empty("w", (1024,), F32).zero_()
    assert (w == 7).all()
    assert kept.empty("w", (1024,), F32).data_ptr() == w.data_ptr()


def test_poison_changes_no_result(pools):
    scratch = pools.open_queue()
    clean = output(scratch)
    pools.poison()
    assert scratch.empty("w", (4,), F32).isnan().all()
    assert torch.equal(output(scratch), clean)


def test_used_memory_of_another_queue_changes_no_result(pools, counters):
    clean = output(ScratchPools(Counters()).open_queue())
    with pools.open_queue() as polluter:
        output(polluter, lengths=(100, 130, 65), seed=2)
    allocations = counts(counters)["gdn.scratch.allocations"]
    assert torch.equal(output(pools.open_queue()), clean)
    assert counts(counters)["gdn.scratch.allocations"] == allocations, "it ran on the polluter's blocks"


@pytest.mark.parametrize("device", ["cpu", "cpu:1"])
def test_fault_a_queue_inherits_what_another_released(device, pools, fault):
    fault("shared_scratch_release")
    alone = output(pools.open_queue())
    assert torch.equal(alone, output(ScratchPools(Counters()).open_queue())), "alone it passes"
    pools = ScratchPools(Counters())
    with pools.open_queue(device) as polluter:
        output(polluter, lengths=(100, 130, 65), seed=2)
    assert not torch.equal(output(pools.open_queue()), alone)


def test_fault_a_live_owner_loses_its_buffers_to_a_queue_with_the_same_handle(pools, fault):
    fault("shared_scratch_release")
    victim = pools.open_queue()
    alone = output(victim)
    assert torch.equal(output(victim), alone)
    with pools.open_queue("cpu:1") as polluter:
        assert polluter.stream == victim.stream
        output(polluter, lengths=(100, 130, 65), seed=2)
    assert not torch.equal(output(victim), alone)


def test_fault_unzeroed_tiles_show_only_on_used_memory(pools, fault):
    clean = output(pools.open_queue())
    fault("ai_not_zeroed")
    assert torch.equal(output(ScratchPools(Counters()).open_queue()), clean), "fresh memory hides it"
    pools = ScratchPools(Counters())
    with pools.open_queue() as larger:
        output(larger, lengths=(100, 130, 65), seed=2)
    assert not torch.equal(output(pools.open_queue()), clean)


def test_fault_poison_makes_unzeroed_tiles_certain(pools, fault):
    fault("ai_not_zeroed")
    scratch = pools.open_queue()
    output(scratch)
    pools.poison()
    assert output(scratch).isnan().any()


@pytest.mark.usefixtures("interpreter")
def test_the_kernels_rely_on_the_same_zeros(pools, fault):
    case = make_case((20,), value_heads=1, slots=(1,), kept=(True,))
    g = torch.zeros(20, 1)
    ctx = OpCtx(scratch=pools.open_queue(), overrides={"kkt_solve": Realization.TRITON}, counters=Counters())
    ctx.scratch.zeroed("A", (1, 1, 64, 64), F32)
    pools.poison()
    clean = calls.kkt_solve(case.k, g, g, case.plan, ctx=ctx).clone()
    assert torch.equal(clean.triu(1), torch.zeros_like(clean))
    pools.poison()
    fault("ai_not_zeroed")
    assert calls.kkt_solve(case.k, g, g, case.plan, ctx=ctx).isnan().any()
