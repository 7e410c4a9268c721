"""Deterministic mode with the real model: two requests, all eight cells, in float32, compared bit by bit."""

import itertools

import pytest

from gpu_runner.gdn.cache.hybrid import CacheConfig
from gpu_runner.gdn.cache.tracking import Strategy
from gpu_runner.gdn.counters import Counters
from gpu_runner.gdn.engine import Engine
from gpu_runner.gdn.faults import VARIABLE
from gpu_runner.gdn.sched import SchedulerConfig
from tests.gdn.engine.tiny_engines import float32_model, prompt_of

CELLS = list(itertools.product([False, True], repeat=3))
NAMES = [
    f"{'deterministic' if d else 'ordinary'}-{'overlap' if o else 'serial'}-{'lazy' if z else 'eager'}"
    for d, o, z in CELLS
]


def engine_of(deterministic, overlap, is_lazy, **cache) -> Engine:
    strategy = Strategy.EXTRA_BUFFER_LAZY if is_lazy else Strategy.EXTRA_BUFFER
    options = {"rows": 512, "slots": 16, "track_interval": 64} | cache
    config = CacheConfig(strategy=strategy, deterministic=deterministic, overlap=overlap, **options)
    return Engine(float32_model(), SchedulerConfig(config), counters=Counters())


def two_requests(engine: Engine):
    """(warm, cold): a request whose prefix another one generated past a checkpoint, and the same after a flush."""
    prompt = prompt_of(100)
    first = engine.generate([prompt], 40)[0]
    second = prompt + first.token_ids[:36]
    warm = engine.generate([second], 6)[0]
    assert engine.flush_cache()
    cold = engine.generate([second], 6)[0]
    assert cold.cached_tokens == 0
    return warm, cold


@pytest.mark.parametrize(("deterministic", "overlap", "is_lazy"), CELLS, ids=NAMES)
def test_cached_equals_cold_within_the_promise_of_the_mode(deterministic, overlap, is_lazy):
    engine = engine_of(deterministic, overlap, is_lazy)
    warm, cold = two_requests(engine)
    assert warm.token_ids == cold.token_ids
    counted = engine.counters.flat((), ())
    if deterministic:
        assert warm.cached_tokens == 64
        assert warm.logprobs == cold.logprobs
        assert counted["gdn.cache.decode_checkpoints"] == 0
        assert counted["gdn.cache.lazy_preallocations"] == 0
    else:
        assert warm.cached_tokens == 128
        assert warm.logprobs == pytest.approx(cold.logprobs, abs=2e-5)
        assert counted["gdn.cache.decode_checkpoints"] >= 1
        assert (counted["gdn.cache.lazy_preallocations"] >= 1) is is_lazy


@pytest.mark.parametrize(("overlap", "is_lazy"), list(itertools.product([False, True], repeat=2)))
def test_decode_that_advances_the_checkpoint_changes_the_logprobs_and_no_token(overlap, is_lazy, monkeypatch):
    monkeypatch.setenv(VARIABLE, "decode_advances_checkpoint")
    warm, cold = two_requests(engine_of(True, overlap, is_lazy))
    assert warm.cached_tokens == 128
    assert warm.token_ids == cold.token_ids
    assert warm.logprobs != cold.logprobs


@pytest.mark.parametrize("fault", ["", "decode_advances_checkpoint"])
def test_reusing_a_prefill_made_checkpoint_is_exact_with_the_fault_on_and_off(fault, monkeypatch):
    monkeypatch.setenv(VARIABLE, fault)
    engine = engine_of(True, True, False)
    prompt = prompt_of(150)
    engine.generate([prompt], 0)
    warm = engine.generate([prompt], 6)[0]
    assert warm.cached_tokens == 128
    assert engine.flush_cache()
    assert engine.generate([prompt], 6)[0].logprobs == warm.logprobs


def test_a_flush_between_the_two_requests_hides_the_fault(monkeypatch):
    monkeypatch.setenv(VARIABLE, "decode_advances_checkpoint")
    engine = engine_of(True, True, False)
    prompt = prompt_of(100)
    first = engine.generate([prompt], 40)[0]
    engine.flush_cache()
    second = prompt + first.token_ids[:36]
    warm = engine.generate([second], 6)[0]
    engine.flush_cache()
    assert engine.generate([second], 6)[0].logprobs == warm.logprobs


def test_company_in_the_batch_changes_no_bit_in_deterministic_mode():
    engine = engine_of(True, True, False, reuse_prefixes=False)
    prompts = [prompt_of(length) for length in (70, 33, 1, 65)]
    together = engine.generate(prompts, 6)
    assert [engine.generate([prompt], 6)[0].logprobs for prompt in prompts] == [t.logprobs for t in together]


def test_a_checkpoint_from_the_rounded_state_shows_only_inside_an_extend(monkeypatch):
    monkeypatch.setenv(VARIABLE, "h_snapshot_bf16")
    for length, is_exact in ((129, False), (128, True)):
        # At 128 tokens the boundary is the end of the extend: its state comes from the pool, in float32.
        engine = Engine(
            float32_model("bfloat16"),
            SchedulerConfig(CacheConfig(512, 16, track_interval=64, deterministic=True)),
            counters=Counters(),
        )
        prompt = prompt_of(length)
        engine.generate([prompt], 0)
        follow_up = [*prompt, *prompt_of(20)]
        warm = engine.generate([follow_up], 3)[0]
        assert warm.cached_tokens == 128
        engine.flush_cache()
        assert (engine.generate([follow_up], 3)[0].logprobs == warm.logprobs) is is_exact
