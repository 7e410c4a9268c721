"""Kernels, loaded once each on first use, and launched one at a time where they are interpreted."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from gpu_runner.gdn import faults
from gpu_runner.gdn.counters import COUNTERS, Counters
from gpu_runner.gdn.faults import Fault
from gpu_runner.gdn.ops.errors import KernelNotReadyError, OperatorError
from gpu_runner.gdn.ops.tiles import Tile

SOURCES = {
    "gating": "elementwise",
    "l2norm": "elementwise",
    "rmsnorm_gated": "elementwise",
    "conv1d": "convolution",
    "conv1d_state": "convolution",
    "conv1d_update": "convolution",
    "conv1d_verify": "convolution",
    "cumsum": "wy",
    "kkt_solve": "wy",
    "wu": "wy",
    "delta_h": "scan",
    "chunk_o": "scan",
    "packed_decode": "decode",
    "verify_decode": "decode",
}
"""Each kernel and its file in ops.kernels."""

SMALLEST_PADDED_SIZE = 16


@dataclass(slots=True)
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    kernel: Any = None
    has_launched: bool = False


class KernelModules:
    """The kernels of this process. Loading, and the first launch, which compiles, happen once and under a lock."""

    def __init__(self, counters: Counters = COUNTERS) -> None:
        self._counters = counters
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        # Triton's interpreter patches its own language while a kernel runs: two at a time break each other.
        self._interpreter_lock = threading.RLock()

    def kernel(self, name: str) -> Any:
        """The Triton kernel of this name, loaded on first use; OperatorError when there is none."""
        return self._ready(name).kernel

    def warm_all(self) -> int:
        """How many kernels there are, all of them loaded now. On a GPU the first launch still compiles."""
        for name in SOURCES:
            self._ready(name)
        return len(SOURCES)

    def launch(self, name: str, grid: tuple[int, ...], tile: Tile, *args: Any, **constants: Any) -> None:
        """Runs a kernel over `grid`; an empty grid runs nothing."""
        if 0 in grid:
            return
        entry = self._ready(name)
        options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
        if is_interpreted():
            with self._one_at_a_time():
                entry.kernel[grid](*args, **constants, **options)
        elif entry.has_launched:
            entry.kernel[grid](*args, **constants, **options)
        else:
            with entry.lock:
                entry.kernel[grid](*args, **constants, **options)
                entry.has_launched = True

    def _one_at_a_time(self) -> AbstractContextManager[object]:
        return nullcontext() if faults.is_on(Fault.UNGUARDED_FIRST_LOAD) else self._interpreter_lock

    def _ready(self, name: str) -> _Entry:
        if faults.is_on(Fault.UNGUARDED_FIRST_LOAD):
            return self._check_then_load(name)
        with self._lock:
            entry = self._entries.setdefault(name, _Entry())
        if entry.kernel is None:
            with entry.lock:
                if entry.kernel is None:
                    entry.kernel = self._load(name)
        return entry

    def _check_then_load(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            # Published before it is complete: whoever looks while it loads finds it half made.
            entry = self._entries[name] = _Entry()
            entry.kernel = self._load(name)
        if entry.kernel is None:
            raise KernelNotReadyError(f"kernel {name!r} was used while another thread was loading it")
        return entry

    def _load(self, name: str) -> Any:
        if name not in SOURCES:
            raise OperatorError(f"there is no kernel {name!r}; known: {', '.join(SOURCES)}")
        module = importlib.import_module(f"gpu_runner.gdn.ops.kernels.{SOURCES[name]}")
        self._counters.add("gdn.modules.loads")
        return getattr(module, f"{name}_kernel")


KERNELS = KernelModules()
"""The kernels of this process."""


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter; settled when triton is imported, by TRITON_INTERPRET."""
    # Absent before the import, and for a moment during it, when another thread is at it.
    builtin = getattr(sys.modules.get("triton.language.standard"), "sum", None)
    if builtin is None:
        return os.environ.get("TRITON_INTERPRET") == "1"
    return type(builtin).__name__ == "InterpretedFunction"


def padded(size: int) -> int:
    """The smallest power of two that holds `size`, and that a dot accepts."""
    return max(SMALLEST_PADDED_SIZE, 1 << (size - 1).bit_length())
