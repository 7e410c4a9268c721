"""Whole tiny models, [GDN, GDN, GDN, full]: the phases agree with each other, and the asked kernels really run."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch

from gpu_runner.gdn.batch import ForwardBatch, Phase, TrackCopy
from gpu_runner.gdn.cache.pools import Pools
from gpu_runner.gdn.config import Family, LayerKind
from gpu_runner.gdn.counters import COUNTERS
from gpu_runner.gdn.logprobs import chosen_log_probabilities, k3_divergence
from gpu_runner.gdn.model import Model
from gpu_runner.gdn.registry import OpCtx, Realization
from gpu_runner.gdn.sampling import SamplingParams, next_token
from gpu_runner.gdn.sequence import Sequence
from gpu_runner.gdn.suite import case as suite
from gpu_runner.gdn.suite.case import case
from gpu_runner.gdn.suite.inputs import assert_near, oracle_context
from gpu_runner.gdn.tiny import tiny_config, tiny_model

PREFILL_OPERATORS = ("gating", "conv1d", "l2norm", "cumsum", "kkt_solve", "wu", "delta_h", "chunk_o", "rmsnorm_gated")


@cache
def model_of(family: Family) -> Model:
    """The suite's model of one family, made once per process."""
    return tiny_model(tiny_config(family), seed=7, dtype=suite.dtype(), device=suite.device())


def tokens_of(count: int, seed: int) -> list[int]:
    """`count` random token ids."""
    return torch.randint(0, 64, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def _closeness() -> float:
    return 1e-3 if suite.dtype() is torch.float32 else 0.35


def _prefill_and_steps(family: Family, prefill: OpCtx) -> None:
    """Logits of a prefill against those of one token at a time by the hand path."""
    tokens = tokens_of(24, seed=1)
    chunked, stepped = (Sequence(model_of(family), len(tokens), ctx) for ctx in (prefill, oracle_context()))
    got = chunked.logits(chunked.extend(tokens))
    want = stepped.logits(torch.cat([stepped.step(token) for token in tokens]))
    assert_near(got, want, atol=_closeness())
    ids = torch.tensor(tokens[1:], device=got.device)
    divergence = k3_divergence(*(chosen_log_probabilities(logits[:-1], ids) for logits in (want, got)))
    suite.measure(f"k3.{family}", divergence)


@case
def sparse_model_prefills_as_it_steps() -> None:
    """Qwen3-Next: chunks of 64 against the recurrence."""
    _prefill_and_steps(Family.QWEN3_NEXT, OpCtx())


@case
def dense_model_prefills_as_it_steps() -> None:
    """Qwen3.5: flat projections and a dense MLP."""
    _prefill_and_steps(Family.QWEN3_5, oracle_context())


@case
def every_layer_fires_what_the_environment_asks() -> None:
    """A prefill and a decode step run the asked realization of each operator in each GDN layer, and decline nothing."""
    model = model_of(Family.QWEN3_NEXT)
    sequence = Sequence(model, 8, OpCtx())
    sequence.extend(tokens_of(7, seed=2))
    sequence.step(3)
    layers = model.config.layer_types.count(LayerKind.GDN)
    default = Realization.TRITON if model.device.type == "cuda" else Realization.TORCH
    executed = COUNTERS.by_layer_and_phase()
    wrong = []
    for operator in (*PREFILL_OPERATORS, "packed_decode"):
        asked = suite.ASKED_AT_START.get(operator, default)
        summary = COUNTERS.layers_summary(operator, asked, layers)
        print(f"{operator} ({asked}): {summary}")
        for realization in Realization:
            outcome = f"{realization}.fired"
            fired = {layer for name, seen, layer, _ in executed if (name, seen) == (operator, outcome)}
            COUNTERS.add(f"gdn.{operator}.{realization}.layers", len(fired))
        if summary != f"{layers}/{layers} GDN layers fired, 0 fallbacks":
            wrong.append(f"{operator} ({asked}): {summary}")
    assert not wrong, "; ".join(wrong)


@case
def mixed_batch_equals_its_parts() -> None:
    """A continuing sequence and a new prompt in one pass, against each by itself."""
    model, ctx = model_of(Family.QWEN3_NEXT), oracle_context()
    first, second = tokens_of(20, seed=3), tokens_of(9, seed=4)
    alone = [Sequence(model, 40, ctx), Sequence(model, 40, ctx)]
    alone[0].extend(first[:-1])
    want = torch.cat([alone[0].logits(alone[0].step(first[-1])), alone[1].logits(alone[1].extend(second))[-1:]])
    pools = Pools.allocate(model.config.pool_shape, rows=40, slots=2, dtype=model.dtype, device=model.device)
    rows = torch.arange(40, device=model.device)
    prompt = _batch(Phase.PREFILL, [first[:-1]], [rows[:19]], [0], [1])
    model.forward(prompt, pools, ctx)
    mixed = _batch(Phase.MIXED, [first[-1:], second], [rows[:20], rows[20:29]], [19, 0], [1, 2])
    got = model.forward(mixed, pools, ctx)
    assert_near(got, want, atol=_closeness())


@case
def checkpoint_resumes_a_prefill() -> None:
    """The state after 64 of 70 tokens, copied during the prefill, continues like the prefill itself."""
    model, ctx = model_of(Family.QWEN3_NEXT), oracle_context()
    tokens = tokens_of(70, seed=5)
    pools = Pools.allocate(model.config.pool_shape, rows=70, slots=2, dtype=model.dtype, device=model.device)
    rows = torch.arange(70, device=model.device)
    whole = replace(_batch(Phase.PREFILL, [tokens], [rows], [0], [1]), tracks=[TrackCopy(0, 64, 2)])
    want = model.forward(whole, pools, ctx)
    got = model.forward(_batch(Phase.PREFILL, [tokens[64:]], [rows], [64], [2]), pools, ctx)
    assert_near(got, want, atol=_closeness())


def _batch(
    phase: Phase, new: list[list[int]], kv_read: list[torch.Tensor], prefix: list[int], slots: list[int]
) -> ForwardBatch:
    """Sequences whose rows are `kv_read`; the last len(new) of each are new."""
    offsets = [0]
    for tokens in new:
        offsets.append(offsets[-1] + len(tokens))
    device = kv_read[0].device
    starts = zip(prefix, new, strict=True)
    return ForwardBatch(
        phase=phase,
        token_ids=torch.tensor([token for tokens in new for token in tokens], device=device),
        positions=torch.cat([torch.arange(p, p + len(t), device=device) for p, t in starts]),
        cu_seqlens=offsets,
        state_slots=torch.tensor(slots, device=device),
        has_initial_state=torch.tensor([p > 0 for p in prefix], device=device),
        kv_write=torch.cat([rows[p:] for rows, p in zip(kv_read, prefix, strict=True)]),
        kv_read=kv_read,
    )


@case
def sampling_repeats_with_its_seed() -> None:
    """Equal seeds draw equal tokens; the draws of two seeds part."""
    model = model_of(Family.QWEN3_5)
    sequence = Sequence(model, 8, oracle_context())
    logits = sequence.logits(sequence.extend(tokens_of(8, seed=6)))[-1]
    draws = [
        [next_token(logits, SamplingParams(temperature=2.0, top_p=0.9, seed=seed), p) for p in range(12)]
        for seed in (1, 1, 2)
    ]
    assert draws[0] == draws[1], "the same seed drew other tokens"
    assert draws[0] != draws[2], "two seeds drew the same tokens"
