"""Memory for intermediate results, owned by one queue of one device and never shared behind its back."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import torch

from gpu_runner.gdn import faults
from gpu_runner.gdn.counters import COUNTERS, Counters
from gpu_runner.gdn.faults import Fault
from gpu_runner.gdn.ops.errors import StaleScratchError

SMALLEST_BLOCK_BYTES = 4096
POISON = 0xFF
"""Every byte of a poisoned block: NaN as float32 and as bfloat16."""


@dataclass(slots=True)
class _Holding:
    """What one queue holds: its blocks by name, and outgrown blocks that a captured plan may still use."""

    blocks: dict[str, torch.Tensor] = field(default_factory=dict)
    retired: list[torch.Tensor] = field(default_factory=list)


class ScratchPools:
    """The scratch of all queues of this process, by (device, stream).

    A queue's blocks return to its device's free blocks when the queue closes, and only then: a block that was outgrown
    is retired, since a captured plan may hold its address. The next queue gets used bytes, so whoever needs zeros
    asks for them (`Scratch.zeroed`). A recycled stream handle is a new generation.
    """

    def __init__(self, counters: Counters = COUNTERS) -> None:
        self.counters = counters
        self._lock = threading.RLock()
        self._holdings: dict[tuple[str, int], _Holding] = {}
        self._zeroed: dict[tuple[str, int], set[str]] = {}
        self._free: dict[str, list[torch.Tensor]] = {}
        self._generations: dict[tuple[str, int], int] = {}
        self._open: set[tuple[str, int]] = set()

    def open_queue(self, device: torch.device | str = "cpu") -> Scratch:
        """Scratch of a new queue, under the lowest stream handle that is free on this device."""
        device = _with_index(device)
        with self._lock:
            stream = 1
            while (str(device), stream) in self._open:
                stream += 1
            return self.of_stream(device, stream)

    def of_stream(self, device: torch.device | str, stream: int) -> Scratch:
        """Scratch of a stream that exists already, such as the current CUDA stream; 0 is the default stream."""
        device = _with_index(device)
        key = (str(device), stream)
        with self._lock:
            if key not in self._open:
                self._open.add(key)
                self._generations[key] = self._generations.get(key, 0) + 1
            return Scratch(self, device, stream, self._generations[key])

    def release(self, device: torch.device | str, stream: int) -> None:
        """Ends a queue: its scratch becomes stale, its blocks free. The caller's work on it must be done."""
        device = _with_index(device)
        key = (str(device), stream)
        with self._lock:
            self._open.discard(key)
            self._generations[key] = self._generations.get(key, 0) + 1
            if faults.is_on(Fault.SHARED_SCRATCH_RELEASE):
                # The handle alone names the scratch: queues of other devices lose theirs while they use it, and the
                # record of what is zero outlives the blocks it describes.
                keys = [held for held in self._holdings if held[1] == stream]
            else:
                keys = [key] if key in self._holdings else []
                self._zeroed.pop(key, None)
            for held in keys:
                holding = self._holdings.pop(held)
                self._free.setdefault(device.type, []).extend([*holding.blocks.values(), *holding.retired])

    def poison(self) -> None:
        """Overwrites every block, held or free, with 0xff: a result that changes had read bytes nobody wrote."""
        with self._lock:
            held = [block for h in self._holdings.values() for block in [*h.blocks.values(), *h.retired]]
            for block in [*held, *(block for blocks in self._free.values() for block in blocks)]:
                block.fill_(POISON)
            for key in self._holdings:
                self._zeroed.pop(self._zero_key(*key), None)

    def is_open(self, device: torch.device, stream: int, generation: int) -> bool:
        """Whether this generation of the stream is still the current one."""
        key = (str(device), stream)
        with self._lock:
            return key in self._open and self._generations[key] == generation

    def block(self, device: torch.device, stream: int, name: str, size_bytes: int, *, zeroed: bool) -> torch.Tensor:
        """The queue's block of this name, uint8, at least `size_bytes` long; cleared when it is new and `zeroed`."""
        with self._lock:
            holding = self._holdings.setdefault((str(device), stream), _Holding())
            known_zero = self._zeroed.setdefault(self._zero_key(str(device), stream), set())
            block = holding.blocks.get(name)
            if block is not None and block.numel() >= size_bytes:
                self.counters.add("gdn.scratch.reuses")
            else:
                if block is not None:
                    self.counters.add("gdn.scratch.growths")
                    known_zero.discard(name)
                    if faults.is_on(Fault.GROW_FREES_CAPTURED):
                        self._free.setdefault(device.type, []).append(block)
                    else:
                        holding.retired.append(block)
                block = holding.blocks[name] = self._take(device, size_bytes)
            if zeroed and name not in known_zero and not faults.is_on(Fault.AI_NOT_ZEROED):
                block.zero_()
                known_zero.add(name)
            return block

    def _zero_key(self, device: str, stream: int) -> tuple[str, int]:
        return ("", stream) if faults.is_on(Fault.SHARED_SCRATCH_RELEASE) else (device, stream)

    def _take(self, device: torch.device, size_bytes: int) -> torch.Tensor:
        # A CPU has one memory, however many logical devices share it.
        where = torch.device("cpu") if device.type == "cpu" else device
        free = self._free.get(device.type, [])
        for i in reversed(range(len(free))):
            if free[i].numel() >= size_bytes and free[i].device == where:
                self.counters.add("gdn.scratch.reuses")
                return free.pop(i)
        self.counters.add("gdn.scratch.allocations")
        capacity = max(SMALLEST_BLOCK_BYTES, 1 << (size_bytes - 1).bit_length())
        # Fresh pages come zeroed from the system; only recycled memory is dirty.
        return torch.zeros(capacity, dtype=torch.uint8, device=where)


def _with_index(device: torch.device | str) -> torch.device:
    """The device by its full name: "cuda" is the current one, under which its blocks and queues are found again."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


@dataclass(frozen=True, slots=True)
class Scratch:
    """One queue's scratch. A buffer is valid until the same name is asked for again; nothing outlives a layer."""

    pools: ScratchPools
    device: torch.device
    stream: int
    generation: int

    def empty(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of this shape whose bytes may be anything. StaleScratchError after the queue was closed."""
        return self._view(name, shape, dtype, zeroed=False)

    def zeroed(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of this shape that is zero outside of what its users wrote under this name and dtype before.

        For tiles of a fixed layout whose upper part is read but never written: zeroed once, when the block is taken.
        """
        return self._view(f"{name}.{dtype}", shape, dtype, zeroed=True)

    def close(self) -> None:
        """Releases the queue."""
        self.pools.release(self.device, self.stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _view(self, name: str, shape: Sequence[int], dtype: torch.dtype, *, zeroed: bool) -> torch.Tensor:
        # The fault's mechanism is exactly that nobody notices that the scratch was released.
        unchecked = faults.is_on(Fault.SHARED_SCRATCH_RELEASE)
        if not unchecked and not self.pools.is_open(self.device, self.stream, self.generation):
            raise StaleScratchError(
                f"scratch of stream {self.stream} on {self.device}, generation {self.generation}, was released; "
                "open a new queue"
            )
        size_bytes = math.prod(shape) * dtype.itemsize
        block = self.pools.block(self.device, self.stream, name, max(1, size_bytes), zeroed=zeroed)
        return block[:size_bytes].view(dtype).view(tuple(shape))


POOLS = ScratchPools()
"""The scratch of this process."""


def default_scratch(device: torch.device | str = "cpu") -> Scratch:
    """Scratch of the current stream of a CUDA device, of stream 0 of any other."""
    device = torch.device(device)
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return POOLS.of_stream(device, stream)
