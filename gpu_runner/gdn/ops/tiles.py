"""Pinned launch configurations: each a function of the operator, never of the batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpu_runner.gdn import faults
from gpu_runner.gdn.faults import Fault
from gpu_runner.gdn.ops import tactics


@dataclass(frozen=True, slots=True)
class Tile:
    """How a kernel is launched. block_v: value rows of the state per program; the rest is Triton's."""

    block_v: int = 64
    num_warps: int = 4
    num_stages: int = 2


PINNED = {
    "kkt_solve": Tile(num_warps=1),
    "delta_h": Tile(block_v=32),
    "chunk_o": Tile(block_v=64),
    "packed_decode": Tile(block_v=16, num_warps=1, num_stages=1),
    "verify_decode": Tile(block_v=16, num_warps=1, num_stages=1),
}
"""The warps of a decode kernel decide the order of its sums: they are part of the numerics."""


def tile(operator: str, sequences: int = 1) -> Tile:
    """The launch configuration of an operator. The number of sequences does not matter, unless a fault makes it."""
    pinned = _tuned.get(operator) or PINNED.get(operator, Tile())
    if faults.is_on(Fault.AUTOTUNE_DISK_CACHE):
        pinned = replace(pinned, num_warps=tactics.warps(operator, sequences, pinned.num_warps))
    return pinned


def reduction_groups(operator: str, sequences: int, size: int) -> int:
    """In how many partial sums the hand path adds `size` products: one for each warp, where the warps divide it."""
    warps = tile(operator, sequences).num_warps
    return warps if size % warps == 0 else 1


CANDIDATES = {"delta_h": (Tile(block_v=32), Tile(block_v=64))}
_tuned: dict[str, Tile] = {}


def tune_on_first_use(operator: str, run: Callable[[], object]) -> None:
    """Under the fault `autotune_writes_state`, once a process: times every candidate on the live arguments.

    An operator that updates its arguments in place has then done so once per candidate before the call that counts.
    """
    if operator in _tuned or not faults.is_on(Fault.AUTOTUNE_WRITES_STATE):
        return
    seconds: dict[Tile, float] = {}
    for candidate in CANDIDATES[operator]:
        _tuned[operator] = candidate
        start = time.perf_counter()
        run()
        seconds[candidate] = time.perf_counter() - start
    _tuned[operator] = min(seconds, key=lambda candidate: seconds[candidate])
