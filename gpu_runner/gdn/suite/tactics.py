"""Decoding, whose launch configuration is part of its numbers: nothing that ran before may choose it.

Fault `autotune_disk_cache`: the large batch writes its tactic to a file, and every later process decodes with it.
"""

from __future__ import annotations

import torch

from gpu_runner.gdn.batch import Phase
from gpu_runner.gdn.ops import calls
from gpu_runner.gdn.registry import OpCtx, Realization
from gpu_runner.gdn.suite.case import case, device
from gpu_runner.gdn.suite.inputs import Inputs, assert_close, oracle_context


def _context() -> OpCtx:
    """On a CPU the hand path, which adds in as many partial sums as the launch has warps; the interpreter does not."""
    hand_path = {"packed_decode": Realization.TORCH, "verify_decode": Realization.TORCH}
    return OpCtx(phase=Phase.DECODE, overrides=hand_path if device().type == "cpu" else {})


def _decode(i: Inputs, ctx: OpCtx) -> torch.Tensor:
    return calls.packed_decode(i.mixed, i.a, i.b, i.A_log, i.dt_bias, i.pool, i.slots, i.kept, ctx=ctx)


@case
def decode_of_a_large_batch_matches_float64() -> None:
    """Six sequences at once."""
    i = Inputs.draw((1,) * 6, seed=21)
    want = _decode(i.in_float64(), oracle_context())
    assert_close(_decode(i.fresh(), _context()), want)


def decode_has_the_bits_of_verification() -> None:
    """One token decoded, and the same token verified as a draft: the same arithmetic, bit for bit."""
    i, ctx = Inputs.draw((1,), seed=22), _context()
    kept, root = torch.ones_like(i.kept), torch.full_like(i.slots, -1)
    verified, states = calls.verify_decode(
        i.mixed, i.a, i.b, i.A_log, i.dt_bias, i.pool, i.slots, kept, root, i.plan, ctx=ctx
    )
    decoded = calls.packed_decode(i.mixed, i.a, i.b, i.A_log, i.dt_bias, i.pool, i.slots, kept, ctx=ctx)
    assert torch.equal(decoded, verified), f"outputs differ by {(decoded - verified).abs().max().item():.1e}"
    state = i.pool[i.slots]
    assert torch.equal(state, states), f"states differ by {(state - states).abs().max().item():.1e}"
