"""The KL tests: sound flows stay below their thresholds, and each fault shows in its arm and not in its control."""

import json
import random
import statistics
from functools import cache

import pytest
import torch

from gpu_runner.gdn.counters import COUNTERS, Counters
from gpu_runner.gdn.faults import VARIABLE
from gpu_runner.gdn.suite import kl_flows
from gpu_runner.gdn.suite.kl_cases import KL_CASES, calibrate, mean_divergence, report, run_case, thresholds
from gpu_runner.gdn.suite.kl_flows import Sample
from tests.gdn.engine.tiny_engines import float32_model

SEED = "experiment-0"


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", [name for name in KL_CASES if name != "admission_pressure"])
def test_a_sound_flow_stays_below_its_threshold(name):
    samples = run_case(name, SEED)
    assert 0 < mean_divergence(samples) <= thresholds()[name].mean
    if name != "tree_speculation":
        hits = [sample for sample in samples if sample.cached_tokens > 0]
        assert len(hits) > len(samples) / 2


@cache
def arm(fault: str) -> tuple[tuple[Sample, ...], dict[str, int]]:
    """The pressure case with this fault on: its samples and counters."""
    COUNTERS.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, fault)
        samples = run_case("admission_pressure", SEED)
    return tuple(samples), COUNTERS.flat((), ())


def test_releasing_rejected_slots_makes_outliers_by_the_re_match_alone():
    sound, counted = arm("")
    released, moved = arm("slot_release_on_reject")
    assert counted["gdn.cache.rejections"] > 0
    assert moved["gdn.cache.rejections"] > 0
    assert (counted["gdn.cache.rematches"], counted["gdn.cache.rematch_depth_changed"]) == (0, 0)
    assert moved["gdn.cache.rematch_depth_changed"] > 0
    changed = [(a, b) for a, b in zip(sound, released, strict=True) if a.cached_tokens != b.cached_tokens]
    assert len(changed) == moved["gdn.cache.rematch_depth_changed"]
    assert all(a == b for a, b in zip(sound, released, strict=True) if a.cached_tokens == b.cached_tokens)
    divergences = [sample.divergence for sample in released]
    assert max(divergences) == max(b.divergence for _, b in changed)
    assert max(divergences) >= 5 * statistics.median(divergences)


def test_the_threshold_separates_the_arms_of_the_pressure_case():
    kept = thresholds()["admission_pressure"]
    assert (kept.runs, kept.rule) == (100, "0.9 quantile")
    assert mean_divergence(arm("")[0]) <= kept.mean < mean_divergence(arm("slot_release_on_reject")[0])


def test_without_pressure_the_fault_changes_nothing(monkeypatch):
    conversations = kl_flows.draw_interruptions(random.Random(5), 2)
    samples = {}
    for fault in ("", "slot_release_on_reject"):
        monkeypatch.setenv(VARIABLE, fault)
        engine = kl_flows.tiny_engine(kl_flows.tiny_model(), rows=4096, counters=Counters())
        samples[fault] = kl_flows.interrupted_turns(engine, conversations)
        assert engine.counters.flat((), ())["gdn.cache.rejections"] == 0
    assert samples[""] == samples["slot_release_on_reject"]


def test_in_float32_a_hit_is_as_good_as_a_cold_run():
    engine = kl_flows.tiny_engine(float32_model(), counters=Counters())
    samples = kl_flows.decode_cache_hit(engine, random.Random(3), [70, 90], 6)
    assert len(samples) == 2
    assert max(sample.divergence for sample in samples) < 1e-8


def test_a_mislabelled_checkpoint_is_a_divergence_that_every_retry_repeats(monkeypatch):
    def run(overlap):
        engine = kl_flows.tiny_engine(float32_model(), overlap=overlap, counters=Counters())
        samples = kl_flows.decode_cache_hit(engine, random.Random(3), [70, 90], 6)
        return max(sample.divergence for sample in samples)

    monkeypatch.setenv(VARIABLE, "overlap_lookahead")
    assert run(overlap=True) > 1e-4
    assert run(overlap=True) == run(overlap=True)
    assert run(overlap=False) < 1e-8


def test_unseeded_prompt_lengths_live_in_the_cache_directory(tmp_path, monkeypatch):
    def lengths(folder):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / folder))
        return kl_flows.prompt_lengths(random.Random(1), 12, 160)

    assert lengths("one") == lengths("two")
    monkeypatch.setenv(VARIABLE, "unseeded_prompt_lengths")
    assert lengths("one") == lengths("one")
    # Twelve lengths out of 161 each: equal by chance once in 10^26.
    assert lengths("one") != lengths("two")


def test_every_sample_is_reported_as_a_measurement(tmp_path, monkeypatch):
    events = tmp_path / "events"
    monkeypatch.setenv("LIKEWISE_EVENTS", str(events))
    report([Sample(0.5, 64), Sample(0.25, 0)], "test_kl.py::test")
    assert [json.loads(line) for line in events.read_text().splitlines()] == [
        {"metric": "kl_div", "value": 0.5, "sample": 0, "test": "test_kl.py::test"},
        {"metric": "kl_div", "value": 0.25, "sample": 1, "test": "test_kl.py::test"},
    ]


def test_nothing_is_calibrated_while_a_fault_is_on(monkeypatch):
    monkeypatch.setenv(VARIABLE, "slot_release_on_reject")
    with pytest.raises(ValueError, match="without faults"):
        calibrate("prefill_cache_hit")


def test_a_replay_needs_an_idle_engine():
    engine = kl_flows.tiny_engine(float32_model(), counters=Counters())
    engine.submit([1, 2, 3], 4)
    with pytest.raises(RuntimeError, match="idle"):
        kl_flows.replay(engine, [1, 2, 3], 1, [0.0, 0.0])
