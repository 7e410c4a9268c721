"""How far answers that used the cache are from a cold replay: the flows of the KL tests.

Each flow returns one k3 divergence per sample (`logprobs.k3_divergence`): the log-probabilities that a request was
answered with against those that a prefill of the same tokens gives after a flush. The flows follow SGLang's
`kl_test_utils.py` and `kl_multiturn_utils.py`; all chance comes from the `random.Random` that they are given.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from gpu_runner.gdn.cache.hybrid import CacheConfig
from gpu_runner.gdn.cache.request import Request
from gpu_runner.gdn.cache.tracking import Strategy
from gpu_runner.gdn.config import Family
from gpu_runner.gdn.counters import COUNTERS, Counters
from gpu_runner.gdn.draft import fit_draft
from gpu_runner.gdn.engine import Engine
from gpu_runner.gdn.faults import Fault, is_on
from gpu_runner.gdn.loader import assemble
from gpu_runner.gdn.logprobs import k3_divergence
from gpu_runner.gdn.model import Model
from gpu_runner.gdn.sampling import SamplingParams
from gpu_runner.gdn.sched import SchedulerConfig
from gpu_runner.gdn.spec_tree import TreeShape, speculate_tree
from gpu_runner.gdn.tiny import random_tensors, tiny_config

TRACK_INTERVAL = 64


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer: its divergence from the replay, and how many tokens of it came from the cache."""

    divergence: float
    cached_tokens: int


def tiny_model(
    *,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str = "cpu",
    initializer_range: float = 0.4,
    has_draft: bool = False,
) -> Model:
    """A random Qwen3.5 of four layers. At 0.4 its bfloat16 divergences are near those of real models."""
    config = tiny_config(Family.QWEN3_5, initializer_range=initializer_range)
    tensors = random_tensors(config, seed=1)
    if has_draft:
        tensors |= fit_draft(Model(config, assemble(config, tensors)), seed=1, sequences=8, tokens=32)
    return Model(config, assemble(config, tensors, dtype=dtype, device=device))


@contextmanager
def without_onednn() -> Iterator[None]:
    """A block in which the CPU multiplies without oneDNN.

    oneDNN compiles a kernel for every new shape, which a tiny model feels, and chooses it by the model of the CPU.
    """
    # Its own context manager also sets a TF32 flag, which a build without Intel GPUs warns about.
    was_enabled = torch.backends.mkldnn.set_flags(False)[0]
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(was_enabled)


def tiny_engine(
    model: Model,
    *,
    rows: int = 4096,
    slots: int = 48,
    deterministic: bool = False,
    overlap: bool = True,
    strategy: Strategy = Strategy.EXTRA_BUFFER,
    counters: Counters = COUNTERS,
) -> Engine:
    """An engine whose decode checkpoints lie on every multiple of 64."""
    cache = CacheConfig(
        rows, slots, strategy=strategy, track_interval=TRACK_INTERVAL, deterministic=deterministic, overlap=overlap
    )
    return Engine(model, SchedulerConfig(cache), counters=counters)


def random_tokens(rng: random.Random, count: int, vocabulary: int = 64) -> list[int]:
    """`count` token ids."""
    return [rng.randrange(vocabulary) for _ in range(count)]


def prompt_lengths(rng: random.Random, count: int, mean: int) -> list[int]:
    """`count` lengths, uniform between half and one and a half times `mean`.

    SGLang draws them without a seed and keeps them in a cache directory, where they outlive the run that drew them:
    a new host has new lengths. That is the fault `unseeded_prompt_lengths`.
    """
    if not is_on(Fault.UNSEEDED_PROMPT_LENGTHS):
        return [rng.randint(mean // 2, mean * 3 // 2) for _ in range(count)]
    kept = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / f"likewise-gdn-lengths-{count}-{mean}.json"
    if not kept.is_file():
        unseeded = random.SystemRandom()
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps([unseeded.randint(mean // 2, mean * 3 // 2) for _ in range(count)]))
    lengths: list[int] = json.loads(kept.read_text())
    return lengths


def replay(engine: Engine, tokens: Sequence[int], first: int, logprobs: Sequence[float]) -> float:
    """The divergence of `logprobs`, those of tokens[first:], from a prefill of all tokens on an empty cache."""
    if not engine.flush_cache():
        raise RuntimeError("a replay needs an idle engine: let its requests finish first")
    cold = engine.score(tokens, first)
    return k3_divergence(torch.tensor(logprobs), torch.tensor(cold))


def prefill_cache_hit(engine: Engine, rng: random.Random, lengths: Sequence[int], new: int) -> list[Sample]:
    """Prompts fill the cache without generating; then they are answered from it."""
    prompts = [random_tokens(rng, length) for length in lengths]
    engine.flush_cache()
    engine.generate(prompts, 0)
    answers = engine.generate(prompts, new)
    return [
        Sample(replay(engine, prompt + answer.token_ids, len(prompt), answer.logprobs), answer.cached_tokens)
        for prompt, answer in zip(prompts, answers, strict=True)
    ]


def decode_cache_hit(engine: Engine, rng: random.Random, lengths: Sequence[int], new: int) -> list[Sample]:
    """A second turn resumes from a state that the first turn's decode made; turns without such a hit are left out."""
    prompts = [random_tokens(rng, length) for length in lengths]
    engine.flush_cache()
    first = engine.generate(prompts, TRACK_INTERVAL + 4)
    turns = [prompt + answer.token_ids + [1] for prompt, answer in zip(prompts, first, strict=True)]
    answers = engine.generate(turns, new)
    return [
        Sample(replay(engine, turn + answer.token_ids, len(turn), answer.logprobs), answer.cached_tokens)
        for prompt, turn, answer in zip(prompts, turns, answers, strict=True)
        if answer.cached_tokens > len(prompt)
    ]


def multi_turn(engine: Engine, rng: random.Random, lengths: Sequence[int], new: int, turns: int = 3) -> list[Sample]:
    """Conversations of several turns, interleaved in a random order, sampled at temperature 1."""
    engine.flush_cache()
    histories = [random_tokens(rng, length) for length in lengths]
    order = [conversation for conversation in range(len(lengths)) for _ in range(turns)]
    rng.shuffle(order)
    answered: list[tuple[list[int], int, list[float], int]] = []
    for conversation in order:
        prompt = histories[conversation] + random_tokens(rng, rng.randint(4, 12))
        answer = engine.generate([prompt], new, SamplingParams(temperature=1.0, seed=rng.randrange(2**31)))[0]
        histories[conversation] = prompt + answer.token_ids
        answered.append((histories[conversation], len(prompt), answer.logprobs, answer.cached_tokens))
    return [Sample(replay(engine, tokens, at, logprobs), hit) for tokens, at, logprobs, hit in answered]


@dataclass(frozen=True, slots=True)
class Interruption:
    """One conversation of `interrupted_turns`: the first answer is cut in by the user after `streamed` tokens."""

    prompt: list[int]
    streamed: int
    unread: int
    message: list[int]
    seed: int


def draw_interruptions(rng: random.Random, count: int) -> list[Interruption]:
    """Conversations whose lengths decide whether the answer crosses a checkpoint before it is interrupted."""
    return [
        Interruption(
            prompt=random_tokens(rng, rng.randint(80, 122)),
            streamed=rng.randint(4, 36),
            unread=rng.randint(4, 12),
            message=random_tokens(rng, 32),
            seed=rng.randrange(2**31),
        )
        for _ in range(count)
    ]


def interrupted_turns(engine: Engine, conversations: Sequence[Interruption], new: int = 2) -> list[Sample]:
    """Follow-ups sent while the first answer is still being generated, in a pool too small for both at once.

    A sample's tokens are the follow-up's own: the user's message and the first `new` tokens of its answer, nearly all
    of them computed by prefill, so that the divergence shows the state which the request resumed from.
    """
    engine.flush_cache()
    asked: list[tuple[Request, int]] = []
    for conversation in conversations:
        first = engine.submit(
            conversation.prompt,
            conversation.streamed + conversation.unread,
            SamplingParams(temperature=1.0, seed=conversation.seed),
        )
        while len(first.output) < conversation.streamed:
            engine.step()
        history = conversation.prompt + first.output[: conversation.streamed]
        sampling = SamplingParams(temperature=1.0, seed=conversation.seed + 1)
        asked.append(
            (engine.submit(history + conversation.message, new, sampling, score_from=len(history)), len(history))
        )
        engine.scheduler.run()
    return [
        Sample(
            replay(engine, request.tokens, history, request.prompt_logprobs + request.output_logprobs),
            request.cached_tokens,
        )
        for request, history in asked
    ]


def tree_speculation(engine: Engine, rng: random.Random, lengths: Sequence[int], new: int) -> list[Sample]:
    """Answers by top-k tree speculation; the engine's model needs a draft head."""
    samples = []
    for length in lengths:
        prompt = random_tokens(rng, length)
        answer = speculate_tree(engine.runner.model, prompt, new, TreeShape(), engine.runner.ctx)
        samples.append(Sample(replay(engine, prompt + answer.token_ids, length, answer.logprobs), 0))
    return samples
