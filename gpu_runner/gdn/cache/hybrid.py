"""The hybrid cache: who owns which row and which state at every point of a request's life.

A request moves WAITING -> matched -> admitted -> prefilled -> decoding -> finished; every method here is one of these
moves. Copies into a request's slot are deferred: a move only notes them, the step that runs next carries them out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpu_runner.gdn.cache.errors import PoolLeakError, PoolMisuseError
from gpu_runner.gdn.cache.pools import PagedRows, slot_allocator
from gpu_runner.gdn.cache.radix import RadixTree
from gpu_runner.gdn.cache.request import Request
from gpu_runner.gdn.cache.tracking import Checkpoints, Grids, Strategy, tracking_slots
from gpu_runner.gdn.counters import Counters
from gpu_runner.gdn.faults import Fault, is_on

COUNTERS_REPORTED = (
    "gdn.cache.rejections",
    "gdn.cache.rematches",
    "gdn.cache.rematch_depth_changed",
    "gdn.cache.decode_checkpoints",
    "gdn.cache.lazy_preallocations",
    "gdn.cache.lazy_failures",
    "gdn.cache.retractions",
    "gdn.cache.hit_tokens",
)
"""Counters that are reported even at zero: an absent counter would mean unknown."""


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Sizes and mode of the cache; slots and rows as in `pools.Pools.allocate`."""

    rows: int
    slots: int
    page_size: int = 1
    strategy: Strategy = Strategy.EXTRA_BUFFER
    track_interval: int = 256
    deterministic: bool = False
    overlap: bool = True
    reuse_prefixes: bool = True

    def __post_init__(self) -> None:
        for name in ("rows", "slots", "page_size", "track_interval"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.strategy is Strategy.NO_BUFFER:
            if self.overlap or self.page_size != 1:
                raise ValueError("no_buffer donates the state at the end: it needs overlap=False and page_size=1")
            if self.deterministic:
                raise ValueError("no_buffer donates states that decode made; deterministic mode needs extra_buffer")

    @property
    def grids(self) -> Grids:
        """The lengths at which a checkpoint may lie."""
        return Grids.of(page_size=self.page_size, track_interval=self.track_interval)

    @property
    def slots_per_request(self) -> int:
        """State slots that a request takes on admission."""
        return 1 + tracking_slots(self.strategy, overlap=self.overlap)


class HybridCache:
    """Allocators and prefix tree of one engine."""

    def __init__(self, config: CacheConfig, counters: Counters) -> None:
        self.config = config
        self.counters = counters
        self.grids = config.grids
        self.rows = PagedRows(config.rows, config.page_size)
        self.slots = slot_allocator(config.slots)
        self.tree = RadixTree(
            page_size=config.page_size,
            checkpoint_grid=self.grids.checkpoint,
            free_rows=self.rows.release,
            free_slot=self.slots.give_back,
        )
        for name in COUNTERS_REPORTED:
            counters.add(name, 0)

    def available_rows(self) -> int:
        """Rows that are free or could be evicted now."""
        return self.rows.available() + self.tree.evictable_rows()

    def match(self, request: Request, tokens: list[int]) -> bool:
        """Finds the checkpoint to resume from and takes a working slot; False when no slot can be had.

        A request that holds a slot already, because its admission was rejected, keeps the checkpoint it matched.
        """
        if request.working is not None:
            return True
        limit = len(tokens) - 1
        if request.score_from is not None:
            limit = min(limit, max(request.score_from - 1, 0))
        found = self.tree.match(tokens[:limit] if self.config.reuse_prefixes else [])
        self.tree.lock(found.node)
        slot = self._take_slot()
        if slot is None:
            self.tree.unlock(found.node)
            return False
        request.working, request.node = slot, found.node
        request.rows, request.tree_rows = found.rows, found.length
        request.computed = request.cached_tokens = found.length
        request.branching = found.branching if self.config.reuse_prefixes else None
        if request.copy_from is None:
            request.copy_from = found.node.state
        if request.rejected_length is not None:
            self.counters.add("gdn.cache.rematches")
            if request.rejected_length != found.length:
                self.counters.add("gdn.cache.rematch_depth_changed")
            request.rejected_length = None
        return True

    def admit(self, request: Request) -> bool:
        """Takes the tracking slots of a matched request; False, with nothing taken, when they cannot be had."""
        wanted = self.config.slots_per_request - 1
        taken: list[int] = []
        while len(taken) < wanted:
            slot = self._take_slot()
            if slot is None:
                for other in taken:
                    self.slots.give_back(other)
                return False
            taken.append(slot)
        request.checkpoints = Checkpoints.over(taken, self.config.strategy)
        self.counters.add("gdn.cache.hit_tokens", request.cached_tokens)
        return True

    def reject(self, request: Request) -> None:
        """A matched request was not admitted: it keeps slot and checkpoint for the next round.

        Releasing them here, so that the next round matches again, is the fault of sgl-project/sglang#16067: the tree
        has changed by then, and the request resumes from another state.
        """
        self.counters.add("gdn.cache.rejections")
        request.rejections += 1
        if is_on(Fault.SLOT_RELEASE_ON_REJECT):
            self.release_hold(request)
        elif is_on(Fault.REJECT_KEEPS_STALE_COW):
            source = request.copy_from
            self.release(request)
            request.copy_from = source
        elif is_on(Fault.REJECT_LEAK):
            request.working = None
            self.release(request)

    def release_hold(self, request: Request) -> None:
        """Takes slot and match from a waiting request; its next match is compared with the one it lost."""
        request.rejected_length = request.cached_tokens
        self.release(request)

    def grow(self, request: Request, length: int) -> bool:
        """Gives the request rows for `length` tokens, evicting from the tree if it must; False when it cannot."""
        missing = self.rows.needed(len(request.rows), length) - self.rows.available()
        if missing > 0:
            self.tree.evict_rows(missing)
        return self.rows.extend(request.rows, length)

    def preallocate(self, request: Request) -> None:
        """Lazy strategy, at a boundary: takes a second tracking slot without evicting anything.

        When there is none the checkpoint is written in place and the old one ceases to be valid.
        """
        self.counters.add("gdn.cache.lazy_preallocations")
        if request.checkpoints.last_length is None:
            return
        slot = self.slots.take()
        if slot is None:
            self.counters.add("gdn.cache.lazy_failures")
        request.checkpoints = request.checkpoints.preallocate(slot)

    def complete(self, request: Request, place: int, length: int) -> None:
        """The checkpoint in tracking place `place` now holds the state after `length` tokens."""
        request.checkpoints = request.checkpoints.complete(place, length, self.config.strategy)
        if self.config.strategy is Strategy.EXTRA_BUFFER_LAZY:
            for other in request.checkpoints.superseded():
                slot = request.checkpoints.slots[other]
                assert slot is not None, "superseded places hold a slot"
                self.slots.give_back(slot)
                request.checkpoints = request.checkpoints.with_slot(other, None)

    def share_prefill(self, request: Request) -> None:
        """Donates the newest checkpoint of an unfinished request to the tree and takes a fresh slot for it."""
        place = request.checkpoints.donation(request.computed)
        if place is None or not self.config.reuse_prefixes:
            return
        fresh = self._take_slot()
        if fresh is None:
            return
        slot, length = request.checkpoints.slots[place], request.checkpoints.lengths[place]
        assert slot is not None, "a valid checkpoint lies in a slot"
        assert length is not None, "a valid checkpoint has a length"
        if self._insert(request, length, slot):
            request.checkpoints = request.checkpoints.with_slot(place, fresh)
        else:
            self.slots.give_back(fresh)

    def finish(self, request: Request) -> None:
        """Donates the longest valid checkpoint of a finished request and frees everything else it holds."""
        if self.config.reuse_prefixes:
            if self.config.strategy is Strategy.NO_BUFFER:
                self._donate_end(request)
            else:
                self._donate_checkpoint(request)
        self.release(request)

    def release(self, request: Request) -> None:
        """Frees all slots, rows and locks of the request: after a finish, an abort or a retraction."""
        for slot in request.held_slots():
            self.slots.give_back(slot)
        self.rows.release(request.own_rows())
        if request.node is not None:
            self.tree.unlock(request.node)
        request.rows, request.tree_rows, request.node = [], 0, None
        request.working = request.copy_from = request.branching = None
        request.checkpoints = Checkpoints()
        request.computed = 0

    def flush(self) -> None:
        """Empties the tree; PoolMisuseError while a request holds a lock on it."""
        if any(node.locks for node in self.tree.nodes()):
            raise PoolMisuseError("the prefix tree is in use; flush it when no request runs or holds a match")
        for node in self.tree.nodes():
            self.rows.release(node.rows)
            if node.state is not None:
                self.slots.give_back(node.state)
        self.tree.reset_links()

    def check(self, requests: Iterable[Request]) -> None:
        """Raises PoolLeakError unless free + tree + held is the whole pool, for slots and rows, without overlaps."""
        requests = list(requests)
        held = [slot for request in requests for slot in request.held_slots()]
        in_tree = [node.state for node in self.tree.nodes() if node.state is not None]
        _check_partition("slot", self.slots.all_numbers(), self.slots.free_numbers(), in_tree, held)
        page = self.config.page_size
        held_pages = [row // page for request in requests for row in request.own_rows()[::page]]
        tree_pages = [row // page for node in self.tree.nodes() for row in node.rows[::page]]
        pages = self.rows.pages
        _check_partition("page", pages.all_numbers(), pages.free_numbers(), tree_pages, held_pages)

    def _donate_checkpoint(self, request: Request) -> None:
        place = request.checkpoints.donation(len(request.tokens))
        if place is None:
            return
        slot, length = request.checkpoints.slots[place], request.checkpoints.lengths[place]
        assert slot is not None, "a valid checkpoint lies in a slot"
        assert length is not None, "a valid checkpoint has a length"
        if self._insert(request, length, slot):
            request.checkpoints = request.checkpoints.with_slot(place, None)

    def _donate_end(self, request: Request) -> None:
        if request.working is not None and self._insert(request, request.computed, request.working):
            request.working = None

    def _insert(self, request: Request, length: int, slot: int) -> bool:
        """Gives the first `length` tokens to the tree and locks them there; whether it took the state in `slot`."""
        if length <= request.tree_rows:
            return False
        insertion = self.tree.insert(request.tokens[:length], request.rows[:length], slot)
        self.rows.release(request.rows[request.tree_rows : insertion.known])
        self.tree.lock(insertion.node)
        if request.node is not None:
            self.tree.unlock(request.node)
        request.node = insertion.node
        request.rows[:length] = insertion.rows
        request.tree_rows = length
        return insertion.took_state

    def _take_slot(self) -> int | None:
        slot = self.slots.take()
        if slot is None and self.tree.evict_states(1):
            slot = self.slots.take()
        return slot


def _check_partition(noun: str, every: set[int], free: set[int], tree: list[int], held: list[int]) -> None:
    used = tree + held
    if len(set(used)) != len(used):
        twice = sorted({number for number in used if used.count(number) > 1})
        raise PoolLeakError(f"{noun}s {twice} have two owners; free them once and hand them out once")
    if overlap := free & set(used):
        raise PoolLeakError(f"{noun}s {sorted(overlap)} are free and in use at once")
    if missing := every - free - set(used):
        raise PoolLeakError(
            f"{noun}s {sorted(missing)} are lost: {len(free)} free + {len(tree)} in the tree + {len(held)} held"
            f" of {len(every)}; somebody forgot to free them"
        )
