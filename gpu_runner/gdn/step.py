"""What the scheduler decided for one forward pass, free of tensors, and what the pass answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from gpu_runner.gdn.batch import Phase
from gpu_runner.gdn.cache.request import Request
from gpu_runner.gdn.cache.tracking import DecodeMasks


@dataclass(frozen=True, slots=True)
class Row:
    """The part of one request in a step: it computes positions `start` to `end`.

    tokens: the inputs; None when the single input is the token that the step in flight samples. samples: whether
    the step yields the token at position `end`. boundary: absolute length whose state is copied to `track_slot`
    (-1: none), the tracking place `place` of the request. decode_index: the request's count of decode steps when
    this one was prepared.
    """

    request: Request
    start: int
    end: int
    tokens: list[int] | None
    samples: bool
    is_decode: bool
    slot: int
    track_slot: int = -1
    place: int = -1
    boundary: int | None = None
    decode_index: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass. copies: state slots `(source, destination)` to copy before it, once, in every layer."""

    phase: Phase
    rows: list[Row]
    copies: list[tuple[int, int]] = field(default_factory=list)
    masks: DecodeMasks | None = None

    def decoding(self) -> list[Request]:
        """The requests of the decode rows, in the order of `masks`."""
        return [row.request for row in self.rows if row.is_decode]


@dataclass(frozen=True, slots=True)
class RowResult:
    """What one row yielded: the sampled token and its log-probability, and those of the prompt's next tokens."""

    token: int | None
    logprob: float
    prompt_logprobs: list[float]


class Results(Protocol):
    """The answer of a forward pass; asking for the values waits for the device."""

    def values(self) -> list[RowResult]:
        """One result per row of the step."""
        ...


class Forward(Protocol):
    """Starts the forward pass of a step."""

    def __call__(self, step: Step) -> Results:
        """The pass's results, possibly still being computed; raises when it cannot be started."""
        ...
