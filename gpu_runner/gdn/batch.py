"""What one forward pass of the model is given: packed tokens and where their state lives."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import torch


class Phase(StrEnum):
    """Which kernels a forward pass uses; one realization per phase keeps a mode's numerics apart."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True)
class TrackCopy:
    """One checkpoint to write during a prefill: the state after `length` new tokens of a sequence.

    `sequence` indexes the batch; `length` counts tokens inside this extend (1 <= length <= new tokens);
    `slot` is the row of the state pool that receives convolution and recurrent state.
    """

    sequence: int
    length: int
    slot: int


@dataclass(slots=True)
class ForwardBatch:
    """Packed sequences of one forward pass.

    Shapes: B sequences, N tokens in all (`N = cu_seqlens[-1]`).

    token_ids, positions: int64 [N]. cu_seqlens: B + 1 offsets into N.
    state_slots: int64 [B], rows of the state pool read and written in place (-1: padding, nothing is touched).
    has_initial_state: bool [B]; False starts from zeros whatever the row holds.
    kv_write: int64 [N], rows of the KV pool that receive the new keys and values (-1: padding).
    kv_read: B tensors int64 [prefix + new], rows of the KV pool of each sequence in token order, new ones included.
    tracks: checkpoints to copy during a prefill. decode_track_slots: int64 [B] or None, rows that receive a copy of
    the state after this decode step (-1: none).
    parents: VERIFY only, int64 [N]: index inside the sequence of each draft token's parent, -1 for the root's parent.
    logit_rows: int64 [R] rows of N whose logits are wanted; None: the last token of each sequence.
    """

    phase: Phase
    token_ids: torch.Tensor
    positions: torch.Tensor
    cu_seqlens: list[int]
    state_slots: torch.Tensor
    has_initial_state: torch.Tensor
    kv_write: torch.Tensor
    kv_read: list[torch.Tensor]
    tracks: list[TrackCopy] = field(default_factory=list)
    decode_track_slots: torch.Tensor | None = None
    parents: torch.Tensor | None = None
    logit_rows: torch.Tensor | None = None
