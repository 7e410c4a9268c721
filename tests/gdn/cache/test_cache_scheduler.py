"""The scheduler over a fake forward pass: admission and rollback, retraction, look-ahead, and the faults of each."""

import random

import pytest

from gpu_runner.gdn.batch import Phase
from gpu_runner.gdn.cache.errors import PoolLeakError, PoolMisuseError, RequestTooLargeError
from gpu_runner.gdn.cache.hybrid import CacheConfig
from gpu_runner.gdn.cache.request import Request, Status
from gpu_runner.gdn.cache.tracking import Checkpoints, Strategy
from gpu_runner.gdn.counters import Counters
from gpu_runner.gdn.faults import VARIABLE
from gpu_runner.gdn.sched import Scheduler, SchedulerConfig
from tests.gdn.cache.fake_forward import FakeForward, WrongStateError, expected_output

PROMPT = random.Random(7).choices(range(5), k=1200)


def make(rows=1024, slots=24, *, prefill_budget=256, reserve=1.0, mixes=False, **cache) -> Scheduler:
    cache = {"track_interval": 64, "overlap": True} | cache
    forward = FakeForward()
    config = SchedulerConfig(
        CacheConfig(rows, slots, **cache), prefill_budget=prefill_budget, reserve=reserve, mixes=mixes
    )
    forward.scheduler = Scheduler(config, forward, Counters())
    return forward.scheduler


def submit(scheduler, prompt, new, **more) -> Request:
    request = Request(f"{len(prompt)}+{new}", prompt, new, **more)
    scheduler.submit(request)
    return request


def count(scheduler, name) -> int:
    return scheduler.counters.flat((), ())[f"gdn.cache.{name}"]


def steps(scheduler, number) -> None:
    for _ in range(number):
        scheduler.step()
        scheduler.check()


def under_pressure() -> tuple[Scheduler, Request, Request]:
    """An answer that will cross a checkpoint, and a follow-up to it that does not fit beside it."""
    scheduler = make(rows=240)
    first = submit(scheduler, PROMPT[:100], 60)
    while len(first.output) < 35:
        scheduler.step()
    follow_up = submit(scheduler, [*PROMPT[:100], *first.output[:35], 4, 4, 4], 20)
    steps(scheduler, 3)
    assert follow_up.status is Status.WAITING
    assert follow_up.rejections >= 2
    return scheduler, first, follow_up


def test_a_rejected_request_keeps_the_checkpoint_it_matched():
    scheduler, _, follow_up = under_pressure()
    slot, node = follow_up.working, follow_up.node
    assert node.state == follow_up.copy_from
    steps(scheduler, 10)
    assert (follow_up.working, follow_up.node) == (slot, node)
    scheduler.run()
    assert (follow_up.cached_tokens, count(scheduler, "rematches")) == (64, 0)


def test_releasing_the_slot_on_rejection_makes_the_next_match_differ(monkeypatch):
    monkeypatch.setenv(VARIABLE, "slot_release_on_reject")
    scheduler, _, follow_up = under_pressure()
    assert follow_up.held_slots() == []
    scheduler.run()
    # The first answer has ended meanwhile and has given the tree a state that decode made.
    assert follow_up.cached_tokens == 128
    assert count(scheduler, "rematches") >= 2
    assert count(scheduler, "rematch_depth_changed") == 1
    assert follow_up.output == expected_output(follow_up.prompt, 20)


def test_without_pressure_the_released_slot_changes_nothing(monkeypatch):
    monkeypatch.setenv(VARIABLE, "slot_release_on_reject")
    scheduler = make(rows=1024)
    submit(scheduler, PROMPT[:100], 60)
    submit(scheduler, PROMPT[:130], 20)
    scheduler.run()
    assert (count(scheduler, "rejections"), count(scheduler, "rematch_depth_changed")) == (0, 0)


@pytest.mark.parametrize("fault", ["", "slot_release_on_reject"])
def test_a_hundred_rejections_lose_no_slot(fault, monkeypatch):
    monkeypatch.setenv(VARIABLE, fault)
    scheduler = make(rows=420)
    submit(scheduler, PROMPT[:200], 130)
    waiting = submit(scheduler, PROMPT[100:300], 40)
    for _ in range(110):
        steps(scheduler, 1)
    assert waiting.rejections >= 100
    scheduler.run()
    assert waiting.output == expected_output(waiting.prompt, 40)
    assert scheduler.flush()
    assert len(scheduler.cache.slots) == 24


def test_a_leak_on_rejection_is_found_by_the_check(monkeypatch):
    monkeypatch.setenv(VARIABLE, "reject_leak")
    with pytest.raises(PoolLeakError, match=r"slots \[\d+\] are lost"):
        under_pressure()


def stale_copy() -> tuple[Scheduler, Request]:
    """A rejected follow-up whose source is evicted and recycled before it is admitted."""
    scheduler, _, follow_up = under_pressure()
    cache = scheduler.cache
    source = follow_up.copy_from
    while cache.slots.take() is not None:
        pass
    cache.tree.evict_states(10)
    if source in cache.slots:
        # Somebody else's state now lies where the follow-up wanted to copy from.
        scheduler._forward.states[source] = [0] * 64
    for slot in cache.slots.all_numbers() - cache.slots.free_numbers():
        if slot not in {s for r in scheduler.live() for s in r.held_slots()} | set(cache.tree.states()):
            cache.slots.give_back(slot)
    return scheduler, follow_up


def test_a_source_that_waits_to_be_copied_cannot_be_evicted():
    scheduler, follow_up = stale_copy()
    scheduler.run()
    assert follow_up.output == expected_output(follow_up.prompt, 20)


def test_a_stale_copy_source_reads_another_s_state(monkeypatch):
    monkeypatch.setenv(VARIABLE, "reject_keeps_stale_cow")
    scheduler, follow_up = stale_copy()
    assert follow_up.copy_from is not None
    with pytest.raises(WrongStateError):
        scheduler.run()


@pytest.mark.parametrize("overlap", [False, True])
def test_checkpoints_of_decode_carry_their_own_length(overlap):
    scheduler = make(overlap=overlap)
    first = submit(scheduler, PROMPT[:100], 60)
    scheduler.run()
    again = submit(scheduler, [*PROMPT[:100], *first.output, 1], 5)
    scheduler.run()
    assert again.cached_tokens == 128
    assert again.output == expected_output(again.prompt, 5)


def test_ignoring_the_step_in_flight_mislabels_a_checkpoint_only_under_overlap(monkeypatch):
    monkeypatch.setenv(VARIABLE, "overlap_lookahead")
    test_checkpoints_of_decode_carry_their_own_length(False)
    with pytest.raises(WrongStateError, match="128 tokens, not 129"):
        test_checkpoints_of_decode_carry_their_own_length(True)


def test_a_prefill_between_two_decode_steps_has_no_look_ahead():
    scheduler = make()
    first = submit(scheduler, PROMPT[:127], 60)
    steps(scheduler, 2)
    # The step to length 128 is in flight; the next step is a prefill, which does not advance the request.
    assert first.computed == 128
    submit(scheduler, PROMPT[300:310], 1)
    steps(scheduler, 1)
    assert (first.computed, first.checkpoints.last_length) == (128, 128)


@pytest.mark.parametrize(("new", "donated"), [(72, 128), (73, 192)])
def test_a_request_that_ends_while_a_checkpoint_is_in_flight_donates_the_one_before(new, donated):
    scheduler = make()
    request = submit(scheduler, PROMPT[:120], new)
    scheduler.run()
    assert request.output == expected_output(PROMPT[:120], new)
    assert max(node.depth() for node in scheduler.cache.tree.states().values()) == donated


def test_pages_run_out_and_the_newest_request_is_retracted_and_rebuilt():
    scheduler = make(rows=320, reserve=0.0)
    requests = [submit(scheduler, PROMPT[i : i + 70], 120) for i in (0, 100)]
    scheduler.run()
    assert count(scheduler, "retractions") >= 1
    assert [r.output for r in requests] == [expected_output(r.prompt, 120) for r in requests]


def test_deterministic_retraction_replays_the_output_by_decode_steps():
    scheduler = make(rows=320, reserve=0.0, deterministic=True)
    requests = [submit(scheduler, PROMPT[i : i + 70], 120) for i in (0, 100)]
    scheduler.run()
    assert count(scheduler, "retractions") >= 1
    assert [r.output for r in requests] == [expected_output(r.prompt, 120) for r in requests]
    prefilled = [row for step in scheduler._forward.steps for row in step.rows if not row.is_decode]
    assert max(row.end for row in prefilled) == 70


def test_deterministic_chunks_end_on_absolute_multiples_of_64():
    scheduler = make(prefill_budget=100, deterministic=True)
    submit(scheduler, PROMPT[:300], 1)
    submit(scheduler, PROMPT[300:430], 1)
    scheduler.run()
    rows = [row for step in scheduler._forward.steps for row in step.rows if not row.is_decode]
    assert all(row.end % 64 == 0 or row.end == len(row.request.prompt) for row in rows)
    assert len(rows) > 5


def test_ordinary_chunks_use_the_whole_budget():
    scheduler = make(prefill_budget=100)
    submit(scheduler, PROMPT[:300], 1)
    scheduler.run()
    assert [row.end for step in scheduler._forward.steps for row in step.rows if not row.is_decode] == [100, 200, 300]


def test_decode_rows_join_a_prefill_only_where_it_is_allowed():
    phases = {}
    for mixes in (False, True):
        scheduler = make(mixes=mixes, prefill_budget=64)
        requests = [submit(scheduler, PROMPT[:64], 30), submit(scheduler, PROMPT[:300], 3)]
        scheduler.run()
        assert [r.output for r in requests] == [expected_output(r.prompt, r.max_new_tokens) for r in requests]
        phases[mixes] = {step.phase for step in scheduler._forward.steps}
    assert Phase.MIXED in phases[True]
    assert phases[False] == {Phase.PREFILL, Phase.DECODE}
    with pytest.raises(ValueError, match="mixes=False"):
        make(mixes=True, deterministic=True)


def test_a_checkpoint_that_the_tree_has_already_does_not_shrink_what_the_request_shares():
    # Both prefill the same 64 tokens in one step; the second keeps its own copy of that state until it ends.
    scheduler = make(slots=30, prefill_budget=128)
    first, second = submit(scheduler, PROMPT[:64], 70), submit(scheduler, PROMPT[:199], 5)
    while second.status is not Status.FINISHED:
        steps(scheduler, 1)
    scheduler.run()
    assert first.output == expected_output(first.prompt, 70)


def test_an_aborted_request_donates_nothing():
    scheduler = make()
    request = submit(scheduler, PROMPT[:40], 100)
    steps(scheduler, 30)
    scheduler.abort(request)
    scheduler.run()
    assert list(scheduler.cache.tree.nodes()) == []


def test_flush_waits_for_the_last_request():
    scheduler = make()
    submit(scheduler, PROMPT[:100], 3)
    steps(scheduler, 1)
    assert not scheduler.flush()
    with pytest.raises(PoolMisuseError, match="in use"):
        scheduler.cache.flush()
    scheduler.run()
    assert scheduler.flush()


@pytest.mark.parametrize(
    ("prompt", "new", "error"),
    [([1] * 1000, 50, RequestTooLargeError), ([], 5, ValueError)],
    ids=["too large", "empty"],
)
def test_what_can_never_run_is_refused_at_the_door(prompt, new, error):
    with pytest.raises(error):
        submit(make(), prompt, new)


@pytest.mark.parametrize(
    "wrong",
    [
        {"strategy": Strategy.NO_BUFFER},
        {"strategy": Strategy.NO_BUFFER, "overlap": False, "page_size": 2},
        {"strategy": Strategy.NO_BUFFER, "overlap": False, "deterministic": True},
    ],
)
def test_no_buffer_excludes_what_it_cannot_do(wrong):
    with pytest.raises(ValueError, match="no_buffer"):
        make(**wrong)


def test_no_buffer_resumes_from_the_end_of_a_sequence():
    scheduler = make(strategy=Strategy.NO_BUFFER, overlap=False)
    first = submit(scheduler, PROMPT[:100], 7)
    scheduler.run()
    again = submit(scheduler, [*PROMPT[:100], *first.output, 2], 5)
    scheduler.run()
    assert again.cached_tokens == 106
    assert again.output == expected_output(again.prompt, 5)


def test_a_lazy_allocation_that_fails_writes_in_place():
    scheduler = make(strategy=Strategy.EXTRA_BUFFER_LAZY, reuse_prefixes=False)
    request = submit(scheduler, PROMPT[:100], 110)
    while request.computed < 127:
        steps(scheduler, 1)
    assert (request.checkpoints.last_length, len(request.checkpoints.held())) == (64, 1)
    outsider = Request("others", [0], 0)
    while (slot := scheduler.cache.slots.take()) is not None:
        outsider.checkpoints = Checkpoints((*outsider.checkpoints.slots, slot), (*outsider.checkpoints.lengths, None))
    scheduler.step()
    # The step that crosses 128 is in flight: the only slot is being overwritten, nothing in it is valid.
    assert (request.computed, request.checkpoints.last_length) == (128, None)
    scheduler.step()
    assert request.checkpoints.last_length == 128
    scheduler.cache.check([*scheduler.live(), outsider])
    for slot in outsider.checkpoints.held():
        scheduler.cache.slots.give_back(slot)
    # The next boundary finds a slot: the old checkpoint stays valid meanwhile, and is given back afterwards.
    while request.computed < 192:
        steps(scheduler, 1)
    assert (request.checkpoints.last_length, len(request.checkpoints.held())) == (128, 2)
    scheduler.run()
    assert (count(scheduler, "lazy_failures"), count(scheduler, "lazy_preallocations")) == (1, 2)
    assert request.output == expected_output(request.prompt, 110)
