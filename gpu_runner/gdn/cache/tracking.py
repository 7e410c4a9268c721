"""Which states become checkpoints: pure decisions about boundaries, masks and ping-pong slots.

The rules are SGLang 0.5.23's (`schedule_batch.py`, `batch_result_processor.py`, `components/mamba.py`), with the
deterministic rows of the review in sgl-project/sglang#47213: decode never writes or advances a checkpoint there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

import torch

MODEL_CHUNK = 64


class Strategy(StrEnum):
    """How a request keeps states that may become checkpoints of the prefix tree."""

    NO_BUFFER = "no_buffer"
    EXTRA_BUFFER = "extra_buffer"
    EXTRA_BUFFER_LAZY = "extra_buffer_lazy"


def tracking_slots(strategy: Strategy, *, overlap: bool) -> int:
    """Tracking slots a request takes on admission, besides its working slot."""
    if strategy is Strategy.EXTRA_BUFFER:
        return 2 if overlap else 1
    return 1 if strategy is Strategy.EXTRA_BUFFER_LAZY else 0


@dataclass(frozen=True, slots=True)
class Grids:
    """Lengths at which a checkpoint may lie: after a prefill (`checkpoint`) and after a decode step (`track`)."""

    checkpoint: int
    track: int

    @classmethod
    def of(cls, *, page_size: int, track_interval: int) -> Self:
        """The grids of a page size and of a decode interval, both in tokens."""
        checkpoint = math.lcm(max(MODEL_CHUNK, page_size), page_size)
        return cls(checkpoint, math.lcm(checkpoint, track_interval))


def extend_track(start: int, end: int, grid: int, branching: int | None) -> int | None:
    """The absolute length to checkpoint while tokens `start` to `end` are prefilled, or None.

    The last whole multiple of `grid` after `start` is taken, unless a branching point of the prefix tree lies
    inside the extend on a chunk of its own: that one is worth more, other requests are known to share it.
    """
    if branching is not None and start < branching < end and (branching - start) % MODEL_CHUNK == 0:
        return branching
    boundary = start + (end - start) // grid * grid
    return boundary if boundary > start else None


def branching_length(full_hit: int, state_depth: int, grid: int) -> int | None:
    """Where shared keys go on beyond the deepest shared state: the next prefill checkpoints that length."""
    boundary = full_hit // grid * grid
    return boundary if boundary > state_depth else None


@dataclass(frozen=True, slots=True)
class DecodeMasks:
    """Who crosses a boundary in one decode step.

    mask: bool [B] on the CPU, still a tensor because it is pinned and sent to the device.
    now: the same as a list. upcoming: who crosses one step later; None exactly when overlap is off.
    """

    mask: torch.Tensor
    now: list[bool]
    upcoming: list[bool] | None


def decode_masks(seq_lens: torch.Tensor, track_grid: int, *, deterministic: bool, overlap: bool) -> DecodeMasks:
    """The masks of a decode step that brings the sequences to `seq_lens` (int64 [B], CPU)."""
    tracks = not deterministic
    remainders = seq_lens % track_grid
    mask = (remainders == 0) & tracks
    upcoming = ((remainders == track_grid - 1) & tracks).tolist() if overlap else None
    return DecodeMasks(mask, mask.tolist(), upcoming)


def rows_to_preallocate(masks: DecodeMasks, strategy: Strategy, *, deterministic: bool) -> list[int]:
    """Rows of a decode step that want a second tracking slot before the forward pass (lazy strategy only)."""
    if deterministic or strategy is not Strategy.EXTRA_BUFFER_LAZY:
        return []
    return [row for row, crosses in enumerate(masks.now) if crosses]


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The tracking slots of one request and the length of the state that each holds (None: none, or in flight).

    The next checkpoint is written to `slots[next_index]`. In the lazy strategy the second place is None most of
    the time.
    """

    slots: tuple[int | None, ...] = ()
    lengths: tuple[int | None, ...] = ()
    next_index: int = 0
    last_index: int | None = None

    @classmethod
    def over(cls, slots: list[int], strategy: Strategy) -> Self:
        """Empty checkpoints over freshly allocated slots."""
        places: tuple[int | None, ...] = tuple(slots)
        if strategy is Strategy.EXTRA_BUFFER_LAZY:
            places += (None,)
        return cls(places, (None,) * len(places))

    @property
    def last_length(self) -> int | None:
        """Length of the newest valid checkpoint (SGLang: `mamba_last_track_seqlen`)."""
        return None if self.last_index is None else self.lengths[self.last_index]

    @property
    def destination(self) -> int | None:
        """The slot that the next checkpoint is written to; None when the request tracks nothing."""
        return self.slots[self.next_index] if self.slots else None

    def held(self) -> list[int]:
        """All tracking slots that the request owns."""
        return [slot for slot in self.slots if slot is not None]

    def with_slot(self, index: int, slot: int | None, length: int | None = None) -> Self:
        """The same with another slot, holding a state of `length`, in place `index`."""
        slots = (*self.slots[:index], slot, *self.slots[index + 1 :])
        lengths = (*self.lengths[:index], length, *self.lengths[index + 1 :])
        return replace(self, slots=slots, lengths=lengths)

    def preallocate(self, slot: int | None) -> Self:
        """Lazy strategy, before a boundary: the next write goes to `slot`, or in place when there is none."""
        if slot is None or self.last_length is None:
            return self
        other = 1 - self.next_index
        return replace(self.with_slot(other, slot), next_index=other)

    def begin_write(self) -> Self:
        """A forward pass is about to overwrite the next slot: what it held is no checkpoint any more."""
        return self.with_slot(self.next_index, self.slots[self.next_index])

    def complete(self, index: int, length: int, strategy: Strategy) -> Self:
        """The write into place `index` has happened: it holds `length`, and the next write goes elsewhere."""
        done = replace(self.with_slot(index, self.slots[index], length), last_index=index)
        if strategy is Strategy.EXTRA_BUFFER:
            return replace(done, next_index=(index + 1) % len(self.slots))
        return replace(done, next_index=index)

    def superseded(self) -> list[int]:
        """Lazy strategy: places whose slot is not the newest checkpoint and may be freed."""
        return [i for i, slot in enumerate(self.slots) if slot is not None and i != self.last_index]

    def donation(self, key_length: int) -> int | None:
        """The place with the longest valid checkpoint within `key_length` tokens, or None: donate nothing."""
        usable = [(n, i) for i, n in enumerate(self.lengths) if n is not None and n <= key_length]
        return max(usable)[1] if usable else None


def boundary_of_result(committed: int, lookahead: int) -> int:
    """The length of the state that a finished decode step wrote.

    `committed` already counts the step in flight when the scheduler ran ahead: `lookahead` (0 or 1) takes it out
    (sgl-project/sglang#29792; leaving it in was #31369).
    """
    return committed - lookahead
