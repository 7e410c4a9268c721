"""Speculative decoding with a chain of drafts: the tokens of plain greedy decoding, in fewer forward passes."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from gpu_runner.gdn.counters import Counters
from gpu_runner.gdn.draft import draft_chain
from gpu_runner.gdn.model import Model
from gpu_runner.gdn.registry import OpCtx
from gpu_runner.gdn.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Speculation:
    """token_ids: the new tokens. proposed, accepted: drafts in all. passes: verify passes of the model."""

    token_ids: list[int]
    proposed: int
    accepted: int
    passes: int


def accepted_prefix(drafts: Items[int], wanted: Items[int]) -> int:
    """How many leading drafts are what the model itself would have said; wanted[i] follows drafts[:i]."""
    count = 0
    while count < len(drafts) and drafts[count] == wanted[count]:
        count += 1
    return count


def speculate(model: Model, prompt: Items[int], max_new_tokens: int, draft_tokens: int, ctx: OpCtx) -> Speculation:
    """Greedy continuation of `prompt` by `max_new_tokens` tokens, `draft_tokens` drafts per pass.

    A pass verifies the last sure token and the drafts after it as one chain. The accepted ones advance the states;
    of the others no trace is left, since their keys and values lie past the end of the sequence. The numbers are
    counted as gdn.spec.proposed, gdn.spec.accepted and gdn.spec.passes.
    """
    if draft_tokens < 1:
        raise ValueError(f"draft_tokens {draft_tokens} must be at least 1; without drafts decode plainly")
    sequence = Sequence(model, len(prompt) + max_new_tokens + draft_tokens, ctx)
    hidden = sequence.extend(prompt)[-1:]
    tokens = [int(sequence.logits(hidden)[0].argmax())]
    proposed = accepted = passes = 0
    while len(tokens) < max_new_tokens:
        drafts = draft_chain(model, hidden, tokens[-1], draft_tokens, ctx)
        batch, output = sequence.verify([tokens[-1], *drafts])
        wanted = sequence.logits(output.hidden).argmax(-1).tolist()
        count = accepted_prefix(drafts, wanted)
        sequence.accept(batch, output, 1 + count)
        hidden = output.hidden[count : count + 1]
        tokens += [*drafts[:count], wanted[count]]
        proposed, accepted, passes = proposed + len(drafts), accepted + count, passes + 1
    _count(ctx.counters, proposed=proposed, accepted=accepted, passes=passes)
    return Speculation(tokens[:max_new_tokens], proposed, accepted, passes)


def greedy(model: Model, prompt: Items[int], max_new_tokens: int, ctx: OpCtx) -> list[int]:
    """Plain greedy continuation, one decode step per token."""
    sequence = Sequence(model, len(prompt) + max_new_tokens, ctx)
    hidden = sequence.extend(prompt)[-1:]
    tokens: list[int] = []
    while True:
        tokens.append(int(sequence.logits(hidden)[0].argmax()))
        if len(tokens) >= max_new_tokens:
            return tokens
        hidden = sequence.step(tokens[-1])


def _count(counters: Counters, **values: int) -> None:
    for name, value in values.items():
        counters.add(f"gdn.spec.{name}", value)
