"""What happens to drafts after their verification: an accepted path becomes the sequence's state."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gpu_runner.gdn.ops.errors import ShapeError


def commit_path(
    path_rows: Sequence[Sequence[int]],
    snapshots: torch.Tensor,
    conv_inputs: torch.Tensor,
    recurrent_pool: torch.Tensor,
    conv_pool: torch.Tensor,
    slots: torch.Tensor,
    *,
    has_initial_state: torch.Tensor,
    destinations: torch.Tensor | None = None,
) -> None:
    """Writes the state after each sequence's accepted drafts into the pools of one layer.

    path_rows: per sequence the packed rows of its accepted drafts, root first; empty: nothing is written.
    snapshots [N, Hv, Dv, Dk] from `verify_decode`; conv_inputs [N, conv_dim], the RAW inputs of `conv1d_verify`.
    `destinations` [B] are the slots written, `slots` itself by default; -1 writes nothing. To checkpoint a shorter
    path elsewhere, do that first: the history of the convolution is read from `slots`.
    """
    targets = (slots if destinations is None else destinations).tolist()
    if len(path_rows) != len(targets):
        raise ShapeError(f"{len(path_rows)} paths for {len(targets)} sequences")
    for path, source, target, keep in zip(path_rows, slots.tolist(), targets, has_initial_state.tolist(), strict=True):
        if not path or target < 0:
            continue
        recurrent_pool[target] = snapshots[path[-1]].to(recurrent_pool.dtype)
        old = conv_pool[source] if keep and source >= 0 else torch.zeros_like(conv_pool[target])
        window = torch.cat([old, conv_inputs[list(path)].t().to(conv_pool.dtype)], dim=1)
        conv_pool[target] = window[:, -3:]


def conv_window(
    x: torch.Tensor, pool: torch.Tensor, slot: int, *, start: int, length: int, has_initial_state: bool
) -> torch.Tensor:
    """The convolution state [conv_dim, 3] of a sequence after `length` new tokens, for a checkpoint inside a prefill.

    x: the packed RAW inputs, the sequence beginning at row `start`. Read it BEFORE `conv1d` advances the pool.
    """
    old = pool[slot] if has_initial_state and slot >= 0 else torch.zeros_like(pool[0])
    new = x[start + max(0, length - 3) : start + length].t().to(pool.dtype)
    return torch.cat([old, new], dim=1)[:, -3:]
