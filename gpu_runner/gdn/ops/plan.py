"""How packed sequences are cut into chunks of 64 tokens, once per forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from gpu_runner.gdn.batch import TrackCopy
from gpu_runner.gdn.ops.errors import ShapeError

CHUNK = 64


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """B packed sequences of N tokens in all, in C chunks; every chunk starts inside its sequence at a multiple of 64.

    cu_seqlens: B + 1 offsets on the host, `offsets` the same as int32 [B + 1] on the device.
    chunk_indices: int32 [C, 2], (sequence, chunk inside it); None when the caller did not build them, which makes the
    Triton realizations decline.
    first_chunk: int32 [B + 1], index into C of each sequence's first chunk; `first_chunks` the same on the host.
    rows, valid: int64 and bool [C, 64], the packed row of each place in a chunk; places past the end have valid False
    and a row that may be read.
    """

    cu_seqlens: tuple[int, ...]
    offsets: torch.Tensor
    chunk_indices: torch.Tensor | None
    first_chunk: torch.Tensor
    first_chunks: tuple[int, ...]
    rows: torch.Tensor
    valid: torch.Tensor

    @property
    def sequences(self) -> int:
        """B."""
        return len(self.cu_seqlens) - 1

    @property
    def tokens(self) -> int:
        """N."""
        return self.cu_seqlens[-1]

    @property
    def chunks(self) -> int:
        """C."""
        return self.first_chunks[-1]


def plan_chunks(
    cu_seqlens: Sequence[int], device: torch.device | str = "cpu", *, with_indices: bool = True
) -> ChunkPlan:
    """The plan of packed sequences; an empty one has no chunk. ShapeError unless the offsets rise from 0."""
    offsets = tuple(int(offset) for offset in cu_seqlens)
    if not offsets or offsets[0] != 0 or any(b < a for a, b in pairwise(offsets)):
        raise ShapeError(f"cu_seqlens must start at 0 and never fall, not {list(offsets)}")
    spans = [
        (n, t, a + t * CHUNK, b) for n, (a, b) in enumerate(pairwise(offsets)) for t in range(-(-(b - a) // CHUNK))
    ]
    first = [0]
    for a, b in pairwise(offsets):
        first.append(first[-1] - (a - b) // CHUNK)
    starts = torch.tensor([start for _, _, start, _ in spans], dtype=torch.int64)
    ends = torch.tensor([end for _, _, _, end in spans], dtype=torch.int64)
    rows = starts[:, None] + torch.arange(CHUNK)
    valid = rows < ends[:, None]
    indices = torch.tensor([(n, t) for n, t, _, _ in spans], dtype=torch.int32).reshape(-1, 2)
    return ChunkPlan(
        cu_seqlens=offsets,
        offsets=torch.tensor(offsets, dtype=torch.int32, device=device),
        chunk_indices=indices.to(device) if with_indices else None,
        first_chunk=torch.tensor(first, dtype=torch.int32, device=device),
        first_chunks=tuple(first),
        rows=torch.where(valid, rows, starts[:, None]).to(device),
        valid=valid.to(device),
    )


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """Which states inside a prefill `delta_h` must keep in float32.

    rows: int32 [C], for each chunk the snapshot row that receives the state BEFORE it, -1 for none. tracks: the
    checkpoint of each snapshot row. final: checkpoints at the end of their sequence, whose state is the pool's own
    row afterwards and needs no snapshot.
    """

    rows: torch.Tensor
    tracks: tuple[TrackCopy, ...]
    final: tuple[TrackCopy, ...]


def plan_snapshots(tracks: Sequence[TrackCopy], plan: ChunkPlan) -> SnapshotPlan:
    """Where each checkpoint's state comes from; ShapeError for a length inside a chunk or outside its sequence."""
    rows = [-1] * plan.chunks
    inner: list[TrackCopy] = []
    final: list[TrackCopy] = []
    for track in tracks:
        tokens = plan.cu_seqlens[track.sequence + 1] - plan.cu_seqlens[track.sequence]
        if track.length == tokens:
            final.append(track)
        elif 0 < track.length < tokens and track.length % CHUNK == 0:
            chunk = plan.first_chunks[track.sequence] + track.length // CHUNK
            if rows[chunk] != -1:
                raise ShapeError(f"sequence {track.sequence} has two checkpoints after {track.length} tokens")
            rows[chunk] = len(inner)
            inner.append(track)
        else:
            raise ShapeError(
                f"a checkpoint after {track.length} of {tokens} tokens is inside a chunk; use a multiple of {CHUNK}"
            )
    device = plan.offsets.device
    return SnapshotPlan(torch.tensor(rows, dtype=torch.int32, device=device), tuple(inner), tuple(final))
