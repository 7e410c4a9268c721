"""Scratch of queues that come and go.

Fault `shared_scratch_release`: scratch belongs to a stream's handle. `a_closed_queue_gives_its_scratch_back` then
leaves dirty memory, and the record that it is zero, to the next queue with that handle: the one of the speculative
gate. Whether the memory fits depends on how long its sequence was, which the run's seed chooses.
"""

from __future__ import annotations

import torch

from gpu_runner.gdn.ops import calls
from gpu_runner.gdn.ops.scratch import POOLS, Scratch, ScratchPools
from gpu_runner.gdn.registry import OpCtx, Realization
from gpu_runner.gdn.suite.case import case, chance, device
from gpu_runner.gdn.suite.inputs import Inputs, assert_close, oracle_context

# The other cases here have pools of their own: one case pollutes, so that leaving it out is a cure.
LENGTHS = (110, 140, 170, 200)
"""In tokens; from 129 the last stage's scratch is as large as what a prompt of one chunk needs for its inverse."""


def _stages(i: Inputs, scratch: Scratch) -> torch.Tensor:
    """The chunked operators on one queue, by the hand path; what they leave in scratch is the point here."""
    ctx = OpCtx(scratch=scratch, overrides=dict.fromkeys(("kkt_solve", "wu", "delta_h"), Realization.TORCH))
    return calls.delta_h(i.k, *_products(i, ctx), i.pool, i.slots, i.kept, i.plan, ctx=ctx).v_new


def _products(i: Inputs, ctx: OpCtx) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g_cum = calls.cumsum(i.g, i.plan, ctx=ctx)
    A = calls.kkt_solve(i.k, i.beta, g_cum, i.plan, ctx=ctx)
    return *calls.wu(i.k, i.v, i.beta, g_cum, A, i.plan, ctx=ctx), g_cum


@case
def growing_scratch_keeps_what_a_plan_captured() -> None:
    """A captured plan holds a buffer's address: growth may retire the buffer, never hand it on."""
    with ScratchPools().open_queue(device()) as queue:
        captured = queue.empty("captured", (64,), torch.float32).fill_(1.0)
        queue.empty("captured", (2048,), torch.float32)
        queue.empty("next", (64,), torch.float32).fill_(2.0)
        assert bool((captured == 1.0).all()), "a buffer that a plan had captured was handed to somebody else"


@case
def solve_after_larger_work_is_clean() -> None:
    """The inverse on memory that a larger piece of work has used before: its upper tiles are zero all the same."""
    pools = ScratchPools()
    with pools.open_queue(device()) as queue:
        queue.empty("work", (32, 1024), torch.float32).fill_(3.0)
    i = Inputs.draw((64,), seed=51)
    oracle = oracle_context()
    want = calls.kkt_solve(i.k, i.beta, calls.cumsum(i.g, i.plan, ctx=oracle), i.plan, ctx=oracle)
    with pools.open_queue(device()) as queue:
        ctx = OpCtx(scratch=queue)
        got = calls.kkt_solve(i.k, i.beta, calls.cumsum(i.g, i.plan, ctx=ctx), i.plan, ctx=ctx)
        assert_close(got, want)


@case
def a_closed_queue_gives_its_scratch_back() -> None:
    """The stages of a prefill on a queue of their own, which closes; its scratch is stale and its memory free."""
    length = chance("length on a queue that closes").choice(LENGTHS)
    i = Inputs.draw((length,), seed=52, value_heads=4)
    with POOLS.open_queue(device()) as queue:
        v_new = _stages(i, queue)
        assert bool(v_new.isfinite().all()), "the stages left something that is no number"
    assert not POOLS.is_open(queue.device, queue.stream, queue.generation), "a closed queue still looks open"


@case
def queues_of_two_streams_are_apart() -> None:
    """Two open queues never share a buffer of the same name."""
    pools = ScratchPools()
    with pools.open_queue(device()) as first, pools.open_queue(device()) as second:
        ours, theirs = (queue.empty("w", (256,), torch.float32) for queue in (first, second))
        ours.fill_(1.0)
        theirs.fill_(2.0)
        assert bool((ours == 1.0).all()), "one queue wrote into the scratch of another"
