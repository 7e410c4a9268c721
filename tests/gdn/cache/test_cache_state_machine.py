"""Everything that can happen to a request, in any order: no slot or row is lost, shared, or used after it was freed.

The forward pass is a fake that checks every read (`fake_forward.py`), so the same run also proves that each request
resumes from exactly the tokens it believes in, and that every answer is that of an uncached run.
"""

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gpu_runner.gdn.cache.errors import CacheError
from gpu_runner.gdn.cache.hybrid import CacheConfig
from gpu_runner.gdn.cache.request import Request, Status
from gpu_runner.gdn.cache.tracking import Strategy
from gpu_runner.gdn.counters import Counters
from gpu_runner.gdn.faults import VARIABLE
from gpu_runner.gdn.sched import Scheduler, SchedulerConfig
from tests.gdn.cache.fake_forward import FakeForward, ForwardBrokeError, expected_output

BASE = [(7 * i * i + 3 * i) % 5 for i in range(600)]


class CacheMachine(RuleBasedStateMachine):
    @initialize(
        strategy=st.sampled_from(list(Strategy)),
        overlap=st.booleans(),
        deterministic=st.booleans(),
        mixes=st.booleans(),
        page_size=st.sampled_from([1, 2]),
        reserve=st.sampled_from([1.0, 0.1]),
        slots=st.sampled_from([5, 9, 30]),
    )
    def start(self, strategy, overlap, deterministic, mixes, page_size, reserve, slots):
        if strategy is Strategy.NO_BUFFER:
            overlap, deterministic, page_size = False, False, 1
        cache = CacheConfig(
            rows=520,
            slots=slots,
            page_size=page_size,
            strategy=strategy,
            track_interval=64,
            deterministic=deterministic,
            overlap=overlap,
        )
        config = SchedulerConfig(cache, prefill_budget=128, reserve=reserve, mixes=mixes and not deterministic)
        self.forward = FakeForward()
        self.counters = Counters()
        self.scheduler = Scheduler(config, self.forward, self.counters)
        self.forward.scheduler = self.scheduler
        self.requests: list[Request] = []
        self.taken_by_others: list[int] = []

    def _submit(self, prompt, new, stop=frozenset()):
        request = Request(f"r{len(self.requests)}", prompt, new, stop_tokens=stop)
        self.scheduler.submit(request)
        self.requests.append(request)

    @rule(
        length=st.sampled_from([1, 63, 64, 65, 129, 200, 257, 300]),
        own=st.sampled_from([0, 1, 9]),
        new=st.sampled_from([0, 1, 70, 140]),
        stop=st.sampled_from([frozenset(), frozenset(), frozenset({2})]),
    )
    def submit(self, length, own, new, stop):
        self._submit(BASE[: max(length - own, 1)] + [4] * own, new, stop)

    @precondition(lambda self: any(len(r.output) > 3 for r in self.requests))
    @rule(data=st.data(), new=st.sampled_from([1, 70]))
    def submit_follow_up(self, data, new):
        earlier = data.draw(st.sampled_from([r for r in self.requests if len(r.output) > 3]))
        self._submit([*(earlier.prompt + earlier.output)[:380], 3], new)

    @rule(count=st.sampled_from([1, 2, 20, 100]))
    def step(self, count):
        for _ in range(count):
            self.scheduler.step()
            self.check()

    @precondition(lambda self: self.scheduler.live())
    @rule(data=st.data())
    def abort(self, data):
        self.scheduler.abort(data.draw(st.sampled_from(self.scheduler.live())))

    @rule()
    def flush(self):
        idle = not self.scheduler.live()
        if self.scheduler.flush():
            assert idle
            assert list(self.scheduler.cache.tree.nodes()) == []

    @rule()
    def forward_breaks(self):
        self.forward.fails_next = True
        before = {request for request in self.requests if request.is_live}
        try:
            self.scheduler.step()
        except ForwardBrokeError:
            assert {request for request in before if request.status is Status.ABORTED}
        self.forward.fails_next = False

    @rule()
    def others_take_every_free_slot(self):
        while (slot := self.scheduler.cache.slots.take()) is not None:
            self.taken_by_others.append(slot)

    @rule()
    def others_give_their_slots_back(self):
        while self.taken_by_others:
            self.scheduler.cache.slots.give_back(self.taken_by_others.pop())

    @precondition(lambda self: self.scheduler.waiting and self.scheduler.running)
    @rule()
    def reject_a_hundred_times(self):
        head = self.scheduler.waiting[0]
        if self.scheduler.cache.match(head, self.scheduler.prefill_tokens(head)):
            for _ in range(100):
                assert self.scheduler.cache.match(head, self.scheduler.prefill_tokens(head))
                self.scheduler.cache.reject(head)
                self.check()

    @invariant()
    def check(self):
        if not hasattr(self, "scheduler"):
            return
        outsider = Request("others", [0], 0)
        outsider.checkpoints = outsider.checkpoints.__class__(tuple(self.taken_by_others), (None,) * 99)
        self.scheduler.cache.check([*self.scheduler.live(), outsider])
        for request in self.requests:
            if request.status is Status.FINISHED:
                assert request.output == expected_output(request.prompt, request.max_new_tokens, request.stop_tokens)
            if not request.is_live:
                assert not request.held_slots()
                assert not request.rows

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        self.others_give_their_slots_back()
        self.forward.fails_next = False
        self.scheduler.run()
        self.check()
        assert all(not request.is_live for request in self.requests)
        assert self.scheduler.flush()
        self.scheduler.check()
        assert len(self.scheduler.cache.slots) == self.scheduler.config.cache.slots
        assert self.scheduler.cache.rows.available() == self.scheduler.config.cache.rows


SETTINGS = settings(
    max_examples=80,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def test_no_history_of_requests_loses_or_shares_a_slot():
    run_state_machine_as_test(CacheMachine, settings=SETTINGS)


def test_the_machine_finds_slots_that_are_lost(monkeypatch):
    monkeypatch.setenv(VARIABLE, "reject_leak")
    hunting = settings(SETTINGS, report_multiple_bugs=False, phases=["generate"])
    # Lost slots are found by the check, or because in the end nobody can be admitted any more.
    with pytest.raises(CacheError):
        run_state_machine_as_test(CacheMachine, settings=hunting)
