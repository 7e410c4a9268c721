"""Pinned launch configurations: each a function of the operator and the head sizes, never of the batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tile:
    """How a kernel is launched. block_v: value rows of the state per program; the rest is Triton's."""

    block_v: int = 64
    num_warps: int = 4
    num_stages: int = 2


PINNED = {
    "packed_decode": Tile(block_v=16, num_warps=1, num_stages=1),
    "verify_decode": Tile(block_v=16, num_warps=1, num_stages=1),
    "delta_h": Tile(block_v=32),
    "chunk_o": Tile(block_v=64),
}


def tile(operator: str, rows: int) -> Tile:
    """The launch configuration of an operator; `rows` is the batch it is asked for, which must not matter."""
    del rows
    return PINNED.get(operator, Tile())


def reduction_groups(operator: str, rows: int, size: int) -> int:
    """In how many partial sums `size` products are added: one for each warp, where the warps divide it."""
    warps = tile(operator, rows).num_warps
    return warps if size % warps == 0 else 1
