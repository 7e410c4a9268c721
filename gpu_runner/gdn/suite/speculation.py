"""Speculative decoding must say what plain greedy decoding says. The gate is the victim of the scratch fault."""

from __future__ import annotations

from dataclasses import replace

import torch

from gpu_runner.gdn.config import Family
from gpu_runner.gdn.ops.scratch import POOLS
from gpu_runner.gdn.registry import OpCtx
from gpu_runner.gdn.sequence import Sequence
from gpu_runner.gdn.spec import greedy, speculate
from gpu_runner.gdn.suite import case as suite
from gpu_runner.gdn.suite.case import case
from gpu_runner.gdn.suite.inputs import assert_near, oracle_context
from gpu_runner.gdn.suite.models import model_of, tokens_of
from gpu_runner.gdn.suite.tactics import decode_has_the_bits_of_verification

PROMPT_TOKENS, NEW_TOKENS, DRAFT_TOKENS = 40, 16, 2


@case
def speculative_gate() -> None:
    """On a queue of its own, speculation gives the tokens that the hand path gives on untouched scratch.

    A drafter that is never right would pass any comparison: accepted drafts are part of the gate.
    """
    model, prompt = model_of(Family.QWEN3_NEXT), tokens_of(PROMPT_TOKENS, seed=61)
    untouched = replace(oracle_context(), deterministic=True)
    if suite.dtype() is torch.bfloat16:
        # Rounding parts the realizations, and then their tokens: both sides use the same ones.
        untouched = replace(untouched, overrides={})
    want_prefix = greedy(model, prompt, NEW_TOKENS, untouched)
    with POOLS.open_queue(suite.device()) as queue:
        ctx = OpCtx(scratch=queue, deterministic=True)
        found = speculate(model, prompt, NEW_TOKENS, DRAFT_TOKENS, ctx)
    got_prefix = found.token_ids
    suite.measure("spec.accepted", found.accepted)
    assert got_prefix == want_prefix, f"got_prefix == want_prefix fails: {got_prefix} against {want_prefix}"
    assert found.accepted > 0, f"accepted > 0 fails: none of {found.proposed} drafts"


@case
def rejected_drafts_leave_no_trace() -> None:
    """After a wrong chain was verified and its first token accepted, the next logits are those of plain decoding."""
    model, prompt, ctx = model_of(Family.QWEN3_5), tokens_of(12, seed=62), oracle_context()
    plain, drafted = Sequence(model, 20, ctx), Sequence(model, 20, ctx)
    plain.extend(prompt)
    drafted.extend(prompt)
    batch, output = drafted.verify([5, 6, 7])
    drafted.accept(batch, output, 1)
    plain.step(5)
    assert_near(drafted.step(9), plain.step(9), atol=1e-4, rtol=1e-3)


# Registered here and not where it stands: it must come after every case that decodes.
case(decode_has_the_bits_of_verification)
