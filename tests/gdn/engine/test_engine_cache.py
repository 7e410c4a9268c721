"""The engine's cache with the real model: branching, copy on write, every strategy, requests that come and go."""

import pytest
import torch

from gpu_runner.gdn.cache.errors import RequestTooLargeError
from gpu_runner.gdn.cache.hybrid import CacheConfig
from gpu_runner.gdn.cache.tracking import Strategy
from gpu_runner.gdn.counters import Counters
from gpu_runner.gdn.engine import Engine
from gpu_runner.gdn.faults import VARIABLE, FaultError
from gpu_runner.gdn.sampling import SamplingParams
from gpu_runner.gdn.sched import SchedulerConfig
from tests.gdn.engine.tiny_engines import float32_model, prompt_of


def engine_of(*, prefill_budget=2048, mixes=False, **cache) -> Engine:
    config = CacheConfig(**({"rows": 1024, "slots": 24, "track_interval": 64} | cache))
    return Engine(
        float32_model(), SchedulerConfig(config, prefill_budget=prefill_budget, mixes=mixes), counters=Counters()
    )


def test_a_branching_point_is_a_miss_a_miss_and_a_hit_at_256():
    engine = engine_of()
    shared = prompt_of(257)
    prompts = [shared + [ending] * 80 for ending in (1, 2, 3)]
    answers = [engine.generate([prompt], 4)[0] for prompt in prompts]
    assert [answer.cached_tokens for answer in answers] == [0, 0, 256]
    cold = engine_of(reuse_prefixes=False).generate([prompts[2]], 4)[0]
    assert answers[2].token_ids == cold.token_ids
    assert answers[2].logprobs == pytest.approx(cold.logprobs, abs=2e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": Strategy.NO_BUFFER, "overlap": False},
        {"strategy": Strategy.EXTRA_BUFFER},
        {"strategy": Strategy.EXTRA_BUFFER_LAZY, "page_size": 2},
        {"mixes": True, "prefill_budget": 64},
        {"rows": 260, "slots": 7},
    ],
    ids=["no buffer", "extra buffer", "lazy, pages of 2", "mixed, chunked", "small pools"],
)
def test_batched_and_cached_answers_equal_lonely_cold_ones(options):
    prompts = [prompt_of(length) for length in (90, 3, 130)]
    cold = engine_of(reuse_prefixes=False)
    first = [cold.generate([prompt], 8)[0] for prompt in prompts]
    follow_ups = [[*prompt, *answer.token_ids, 5] for prompt, answer in zip(prompts, first, strict=True)]
    second = [cold.generate([prompt], 8)[0] for prompt in follow_ups]
    engine = engine_of(**options)
    for wanted, asked in ((first, prompts), (second, follow_ups)):
        got = engine.generate(asked, 8)
        assert [g.token_ids for g in got] == [w.token_ids for w in wanted]
        for g, w in zip(got, wanted, strict=True):
            assert g.logprobs == pytest.approx(w.logprobs, abs=3e-5)
    assert engine.counters.flat((), ())["gdn.cache.hit_tokens"] > 0


def test_a_child_s_writes_never_change_the_state_that_it_copied():
    engine = engine_of()
    prompt = prompt_of(64)
    engine.generate([[*prompt, 1]], 0)
    (slot,) = engine.scheduler.cache.tree.states()
    before = engine.runner.pools.temporal[:, slot].clone()
    answers = engine.generate([[*prompt, ending, 4] for ending in (1, 2, 3)], 5)
    assert {answer.cached_tokens for answer in answers} == {64}
    assert torch.equal(engine.runner.pools.temporal[:, slot], before)


def test_scores_are_the_logprobs_of_the_generation():
    engine = engine_of()
    prompt = prompt_of(70)
    answer = engine.generate([prompt], 10)[0]
    assert engine.score([*prompt, *answer.token_ids], 70) == pytest.approx(answer.logprobs, abs=5e-5)
    assert len(engine.score(prompt)) == 69
    with pytest.raises(ValueError, match="no token to score"):
        engine.score(prompt, 70)


def test_a_seed_repeats_a_sampled_answer_in_any_company():
    engine = engine_of()
    sampling = SamplingParams(temperature=1.0, seed=11)
    alone = engine.generate([prompt_of(20)], 8, sampling)[0]
    company = engine.generate([prompt_of(50), prompt_of(20)], 8, sampling)[1]
    assert alone.token_ids == company.token_ids
    assert alone.token_ids != engine.generate([prompt_of(20)], 8)[0].token_ids


def test_a_stop_token_ends_an_answer():
    engine = engine_of()
    whole = engine.generate([prompt_of(20)], 12)[0].token_ids
    stop = whole[5]
    stopped = engine.generate([prompt_of(20)], 12, stop_tokens=frozenset({stop}))[0].token_ids
    assert stopped == whole[: whole.index(stop) + 1]


def test_server_info_tells_the_pools_and_the_faults(monkeypatch):
    engine = engine_of()
    engine.generate([prompt_of(70)], 2)
    monkeypatch.setenv(VARIABLE, "reject_leak")
    info = engine.server_info()
    assert (info["tree_slots"], info["free_slots"], info["running"], info["waiting"]) == (1, 23, 0, 0)
    assert info["free_rows"] + info["evictable_rows"] == 1024
    assert info["faults"] == ["reject_leak"]
    assert info["config"]["cache"]["strategy"] == "extra_buffer"
    with pytest.raises(FaultError, match="production"):
        Engine(float32_model(), engine.config, production=True)


def test_the_list_mask_breaks_decode_and_frees_what_the_request_held(monkeypatch):
    engine = engine_of()
    monkeypatch.setenv(VARIABLE, "mask_is_list")
    with pytest.raises(AttributeError, match="list"):
        engine.generate([prompt_of(20)], 4)
    engine.scheduler.run()
    assert engine.flush_cache()
    monkeypatch.setenv(VARIABLE, "")
    assert len(engine.generate([prompt_of(20)], 4)[0].token_ids) == 4


@pytest.mark.parametrize(
    ("prompt", "new_tokens", "message"),
    [([1, 64], 3, "64"), ([-1, 1], 3, "-1"), ([1.5], 3, "1.5"), ([1], -1, "negative"), ([], 3, "empty"),
     ([1] * 1600, 3, "do not fit")],
)  # fmt: skip
def test_a_prompt_that_is_refused_leaves_the_engine_as_it_was(prompt, new_tokens, message):
    engine = engine_of()
    with pytest.raises((ValueError, RequestTooLargeError), match=message):
        engine.generate([prompt_of(10), prompt], new_tokens)
    assert engine.scheduler.live() == []
    assert engine.flush_cache()


@pytest.mark.parametrize("sizes", [{"rows": 0}, {"slots": 0}, {"page_size": 0}, {"track_interval": 0}], ids=str)
def test_a_cache_without_a_size_is_refused(sizes):
    with pytest.raises(ValueError, match=f"{next(iter(sizes))} is 0"):
        CacheConfig(**({"rows": 512, "slots": 8} | sizes))


@pytest.mark.parametrize("limits", [{"max_running": 0}, {"reserve": -1.0}], ids=str)
def test_a_scheduler_that_could_admit_nobody_is_refused(limits):
    with pytest.raises(ValueError, match=next(iter(limits))):
        SchedulerConfig(CacheConfig(512, 8), **limits)
