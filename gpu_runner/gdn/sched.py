"""The scheduler: who computes what in the next forward pass.

Prefill goes before decode; requests are admitted in their order of arrival. With overlap the next step is prepared
and started before the results of the last one are read, so decisions run one step ahead of what is known.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import torch

from gpu_runner.gdn.batch import Phase
from gpu_runner.gdn.cache.errors import CacheError, RequestTooLargeError
from gpu_runner.gdn.cache.historical import with_historical_faults
from gpu_runner.gdn.cache.hybrid import CacheConfig, HybridCache
from gpu_runner.gdn.cache.request import Request, Status
from gpu_runner.gdn.cache.tracking import (
    MODEL_CHUNK,
    DecodeMasks,
    boundary_of_result,
    decode_masks,
    extend_track,
    rows_to_preallocate,
)
from gpu_runner.gdn.counters import COUNTERS, Counters
from gpu_runner.gdn.faults import Fault, is_on
from gpu_runner.gdn.step import Forward, Results, Row, RowResult, Step


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of the scheduler.

    prefill_budget: new tokens per prefill step; a longer prompt is cut ("chunked prefill"). reserve: the share of
    `max_new_tokens` for which admission keeps rows; below 1 running requests may have to be retracted. mixes:
    whether decode rows join a prefill step; deterministic mode forbids it.
    """

    cache: CacheConfig
    max_running: int = 8
    prefill_budget: int = 2048
    reserve: float = 1.0
    mixes: bool = False

    def __post_init__(self) -> None:
        if self.max_running < 1 or self.reserve < 0:
            raise ValueError(f"max_running {self.max_running} is below 1, or reserve {self.reserve} below 0")
        if self.cache.deterministic and self.mixes:
            raise ValueError("deterministic mode keeps decode rows on decode kernels; set mixes=False")
        grid = self.cache.grids.checkpoint
        if self.prefill_budget < grid:
            raise ValueError(f"prefill_budget {self.prefill_budget} is below one chunk; use {grid} or more")


@dataclass(slots=True)
class _Pending:
    step: Step
    results: Results


class Scheduler:
    """Continuous batching over a hybrid cache; `forward` starts a pass, `step` makes one round."""

    def __init__(self, config: SchedulerConfig, forward: Forward, counters: Counters = COUNTERS) -> None:
        self.config = config
        self.cache = HybridCache(config.cache, counters)
        self.counters = counters
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._forward = forward
        self._partial: Request | None = None
        self._pending: _Pending | None = None

    def submit(self, request: Request) -> None:
        """Queues a request; RequestTooLargeError when it could not run even alone."""
        rows = len(request.prompt) + request.max_new_tokens + 1
        page = self.config.cache.page_size
        if -(-rows // page) * page > self.config.cache.rows:
            raise RequestTooLargeError(f"{rows} tokens with the output do not fit into {self.config.cache.rows} rows")
        needed = self.config.cache.slots_per_request + 1
        if needed > self.config.cache.slots:
            raise RequestTooLargeError(f"a request and its source need {needed} state slots; there are fewer")
        if not request.prompt:
            raise ValueError(f"request {request.name!r} has an empty prompt; give at least one token")
        self.waiting.append(request)

    def step(self) -> bool:
        """One round: prepares and starts a pass, reads the results that are due. False when there was nothing to do.

        When the pass raises, its requests are aborted, what they held is freed, and the exception goes on.
        """
        step = self._prepare()
        started = None if step is None else self._start(step)
        due, self._pending = (self._pending, started) if self.config.cache.overlap else (started, None)
        if due is not None:
            self._check_announced(due.step, started)
            self._finish_step(due)
        return step is not None or due is not None

    def run(self) -> None:
        """Makes rounds until no request is left, then checks that nothing leaked."""
        while self.step():
            pass
        if self.waiting:
            raise CacheError(f"{len(self.waiting)} requests wait and none can be admitted; this is a defect")
        self.check()

    def abort(self, request: Request) -> None:
        """Ends a request, whether it waits or runs, and frees what it holds; nothing is donated."""
        if request.is_live:
            self._drop(request)
            request.status = Status.ABORTED
            self.cache.release(request)

    def flush(self) -> bool:
        """Empties the prefix cache; False, and nothing happens, while requests wait or run."""
        if self.waiting or self.running or self._pending is not None:
            return False
        self.cache.flush()
        return True

    def live(self) -> list[Request]:
        """The requests that wait or run."""
        return [*self.waiting, *self.running]

    def check(self) -> None:
        """Raises PoolLeakError unless every slot and row has exactly one owner."""
        self.cache.check(self.live())

    def prefill_tokens(self, request: Request) -> list[int]:
        """The tokens that prefill computes.

        In deterministic mode a retracted request replays its output by decode steps, as it was first computed.
        """
        return request.prompt if self.config.cache.deterministic else request.tokens

    def _prepare(self) -> Step | None:
        rows = self._prefill_rows()
        if not rows:
            return self._decode_step()
        copies = [(r.copy_from, r.working) for row in rows if (r := row.request).copy_from is not None]
        for row in rows:
            row.request.copy_from = None
        pairs = [(source, slot) for source, slot in copies if source is not None and slot is not None]
        decoding = self._decoding({row.request for row in rows}) if self.config.mixes else []
        if decoding and self._rows_for_decode(decoding, may_retract=False):
            masks = self._masks(decoding)
            return Step(Phase.MIXED, rows + self._decode_rows(decoding, masks), pairs, masks)
        return Step(Phase.PREFILL, rows, pairs)

    def _prefill_rows(self) -> list[Row]:
        budget = self.config.prefill_budget
        rows: list[Row] = []
        if self._partial is not None:
            row = self._extend(self._partial, budget)
            while row is None and len(self.running) == 1 and self._partial is not None:
                self._make_room()
                row = self._extend(self._partial, budget)
            if row is None:
                return []
            rows.append(row)
            budget -= row.end - row.start
        while self.waiting and budget >= MODEL_CHUNK and self._partial is None:
            request = self.waiting[0]
            if len(self.running) >= self.config.max_running or not self._admit(request):
                break
            row = self._extend(request, budget)
            if row is None:
                self._retract(request)
                break
            rows.append(row)
            budget -= row.end - row.start
        return rows

    def _admit(self, request: Request) -> bool:
        """Matches and admits the head of the queue, or rolls back and leaves it waiting."""
        matched = self.cache.match(request, self.prefill_tokens(request))
        if not (matched and self._fits(request) and self.cache.admit(request)):
            if matched:
                self.cache.reject(request)
            can_help = not self.running and self._release_other_holds(request)
            return can_help and self._admit(request)
        self.waiting.popleft()
        request.status = Status.RUNNING
        self.running.append(request)
        return True

    def _fits(self, request: Request) -> bool:
        new = len(request.tokens) - request.computed + self._reserved(request)
        promised = sum(self._reserved(r) + max(len(self.prefill_tokens(r)) - r.computed, 0) for r in self.running)
        return new + promised <= self.cache.available_rows()

    def _reserved(self, request: Request) -> int:
        return math.ceil(self.config.reserve * (request.max_new_tokens - len(request.output))) + 1

    def _release_other_holds(self, request: Request) -> bool:
        """Nothing runs and the head does not fit: others that wait give their slots back. Whether any did."""
        holders = [other for other in self.waiting if other is not request and other.working is not None]
        for other in holders:
            self.cache.release_hold(other)
        return bool(holders)

    def _extend(self, request: Request, budget: int) -> Row | None:
        tokens = self.prefill_tokens(request)
        start = request.computed
        end = self._chunk_end(start, len(tokens), budget)
        if end <= start or not self.cache.grow(request, end):
            return None
        grid = self.cache.grids.checkpoint
        checkpoints = request.checkpoints
        boundary = extend_track(start, end, grid, request.branching) if checkpoints.slots else None
        destination = checkpoints.destination
        if boundary is None or destination is None:
            boundary, destination = None, -1
        is_last = end == len(tokens)
        row = Row(
            request,
            start,
            end,
            tokens[start:end],
            samples=is_last and request.max_new_tokens > 0,
            is_decode=False,
            slot=_working(request),
            track_slot=destination,
            place=checkpoints.next_index,
            boundary=boundary,
        )
        if boundary is not None:
            request.checkpoints = checkpoints.begin_write()
        self._partial = None if is_last else request
        return row

    def _chunk_end(self, start: int, total: int, budget: int) -> int:
        """Where this prefill chunk stops: at the end, or on a page; in deterministic mode on a multiple of the grid."""
        if total - start <= budget:
            return total
        unit = self.cache.grids.checkpoint if self.config.cache.deterministic else self.config.cache.page_size
        return (start + budget) // unit * unit

    def _decoding(self, without: set[Request]) -> list[Request]:
        return [r for r in self.running if r is not self._partial and r not in without and r.max_new_tokens > 0]

    def _decode_step(self) -> Step | None:
        decoding = self._decoding(set())
        if not decoding:
            return None
        while not self._rows_for_decode(decoding, may_retract=True):
            decoding = self._decoding(set())
            if not decoding:
                return None
        masks = self._masks(decoding)
        return Step(Phase.DECODE, self._decode_rows(decoding, masks), masks=masks)

    def _rows_for_decode(self, decoding: list[Request], *, may_retract: bool) -> bool:
        """Gives every request a row for one more token; False when somebody had to leave, or would have to."""
        needed = sum(self.cache.rows.needed(len(r.rows), r.computed + 1) for r in decoding)
        if needed > self.cache.available_rows():
            if may_retract:
                self._make_room()
            return False
        for request in decoding:
            grown = self.cache.grow(request, request.computed + 1)
            assert grown, "counted above"
        return True

    def _make_room(self) -> None:
        """Reads the results in flight first: they may finish somebody. Then the newest request is retracted."""
        if self._pending is not None:
            due, self._pending = self._pending, None
            self._finish_step(due)
        elif len(self.running) > 1:
            self._retract(self.running[-1])
        else:
            holders = [request for request in self.waiting if request.working is not None]
            if not holders:
                raise CacheError("one request alone has outgrown the pool; submit() should have refused it")
            for request in holders:
                self.cache.release_hold(request)

    def _retract(self, request: Request) -> None:
        self.counters.add("gdn.cache.retractions")
        self._drop(request)
        self.cache.release(request)
        request.status = Status.WAITING
        self.waiting.appendleft(request)

    def _masks(self, decoding: list[Request]) -> DecodeMasks:
        lengths = torch.tensor([request.computed + 1 for request in decoding], dtype=torch.int64)
        cache = self.config.cache
        masks = decode_masks(
            lengths, self.cache.grids.track, deterministic=not self._decode_tracks(), overlap=cache.overlap
        )
        return with_historical_faults(masks)

    def _decode_tracks(self) -> bool:
        """Whether decode makes checkpoints: never in deterministic mode, unless the fault leaves the masks on."""
        return not self.config.cache.deterministic or is_on(Fault.DECODE_ADVANCES_CHECKPOINT)

    def _decode_rows(self, decoding: list[Request], masks: DecodeMasks) -> list[Row]:
        strategy = self.config.cache.strategy
        wanted = set(rows_to_preallocate(masks, strategy, deterministic=not self._decode_tracks()))
        rows = []
        for index, request in enumerate(decoding):
            if index in wanted:
                self.cache.preallocate(request)
            request.decode_steps += 1
            place, boundary, track_slot = -1, None, -1
            destination = request.checkpoints.destination
            if masks.now[index] and destination is not None:
                place, boundary, track_slot = request.checkpoints.next_index, request.computed + 1, destination
                request.checkpoints = request.checkpoints.begin_write()
            known = request.tokens[request.computed : request.computed + 1]
            rows.append(
                Row(
                    request,
                    request.computed,
                    request.computed + 1,
                    known or None,
                    samples=True,
                    is_decode=True,
                    slot=_working(request),
                    track_slot=track_slot,
                    place=place,
                    boundary=boundary,
                    decode_index=request.decode_steps,
                )
            )
        return rows

    def _start(self, step: Step) -> _Pending:
        try:
            results = self._forward(step)
        except BaseException:
            for row in step.rows:
                self.abort(row.request)
            raise
        for row in step.rows:
            row.request.computed = row.end
            if not row.is_decode and row.boundary is not None:
                self.cache.complete(row.request, row.place, row.boundary)
                self.cache.share_prefill(row.request)
        return _Pending(step, results)

    def _check_announced(self, due: Step, started: _Pending | None) -> None:
        """CacheError when the step in flight checkpoints a request and the last step's masks did not announce it."""
        upcoming = None if due.masks is None else due.masks.upcoming
        if upcoming is None or started is None or started.step.masks is None or started.step is due:
            return
        now = dict(zip(started.step.decoding(), started.step.masks.now, strict=True))
        for request, announced in zip(due.decoding(), upcoming, strict=True):
            if now.get(request, announced) != announced:
                raise CacheError(f"request {request.name!r} crosses a boundary that was not announced")

    def _finish_step(self, due: _Pending) -> None:
        for row, result in zip(due.step.rows, due.results.values(), strict=True):
            if row.request.status is Status.RUNNING:
                self._take_result(row, result)

    def _take_result(self, row: Row, result: RowResult) -> None:
        request = row.request
        request.prompt_logprobs += result.prompt_logprobs
        if row.is_decode and row.place >= 0:
            lookahead = 0 if is_on(Fault.OVERLAP_LOOKAHEAD) else request.decode_steps - row.decode_index
            self.counters.add("gdn.cache.decode_checkpoints")
            self.cache.complete(request, row.place, boundary_of_result(request.computed, lookahead))
        # A retracted request replays tokens that it has already: the sample says nothing new.
        if row.end != len(request.tokens):
            return
        if result.token is not None:
            request.output.append(result.token)
            request.output_logprobs.append(result.logprob)
        if len(request.output) >= request.max_new_tokens or request.stops():
            self._drop(request)
            request.status = Status.FINISHED
            self.cache.finish(request)

    def _drop(self, request: Request) -> None:
        """Takes the request out of the queues."""
        if request in self.running:
            self.running.remove(request)
        if request in self.waiting:
            self.waiting.remove(request)
        if self._partial is request:
            self._partial = None


def _working(request: Request) -> int:
    assert request.working is not None, "an admitted request has a working slot"
    return request.working
