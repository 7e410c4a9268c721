"""Where keys, values and recurrent states live, and who may use which row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch

from gpu_runner.gdn.cache.errors import PoolMisuseError

RESERVED_SLOT = 0


@dataclass(frozen=True, slots=True)
class PoolShape:
    """Sizes of the two pools of one model: the layers of each kind and the shape of what a layer keeps."""

    full_layers: int
    gdn_layers: int
    kv_heads: int
    head_dim: int
    conv_dim: int
    value_heads: int
    value_dim: int
    key_dim: int
    conv_width: int = 4


@dataclass(frozen=True, slots=True)
class Pools:
    """The memory of all sequences.

    kv_k, kv_v: [full layers, rows, kv heads, head dim], model dtype; one row holds one token.
    conv: [gdn layers, slots + 1, conv dim, width - 1], model dtype: the last raw inputs of the convolution.
    temporal: [gdn layers, slots + 1, Hv, Dv, Dk], float32: the recurrent state, key dimension contiguous.
    Slot 0 is reserved: it belongs to nobody, and no request reads it.
    """

    kv_k: torch.Tensor
    kv_v: torch.Tensor
    conv: torch.Tensor
    temporal: torch.Tensor

    @classmethod
    def allocate(
        cls,
        shape: PoolShape,
        *,
        rows: int,
        slots: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Zeroed pools with `rows` token rows and `slots` usable state slots (1 to `slots`)."""
        kv = (shape.full_layers, rows, shape.kv_heads, shape.head_dim)
        conv = (shape.gdn_layers, slots + 1, shape.conv_dim, shape.conv_width - 1)
        temporal = (shape.gdn_layers, slots + 1, shape.value_heads, shape.value_dim, shape.key_dim)
        return cls(
            kv_k=torch.zeros(kv, dtype=dtype, device=device),
            kv_v=torch.zeros(kv, dtype=dtype, device=device),
            conv=torch.zeros(conv, dtype=dtype, device=device),
            temporal=torch.zeros(temporal, dtype=torch.float32, device=device),
        )

    def copy_states(self, pairs: list[tuple[int, int]]) -> None:
        """Copies convolution and recurrent state of every layer from slot to slot, `(source, destination)`."""
        if not pairs:
            return
        source, destination = torch.tensor(pairs, device=self.conv.device).unbind(1)
        self.conv[:, destination] = self.conv[:, source]
        self.temporal[:, destination] = self.temporal[:, source]


class FreeList:
    """Hands out the numbers `first` to `first + size - 1`, the one freed last first.

    Reusing the newest number at once makes a stale reference visible in the very next request.
    """

    def __init__(self, size: int, *, first: int = 0) -> None:
        self.size = size
        self._first = first
        self._free = list(range(first + size - 1, first - 1, -1))
        self._is_free = set(self._free)

    def __len__(self) -> int:
        """How many numbers are free."""
        return len(self._free)

    def __contains__(self, number: int) -> bool:
        """Whether `number` is free now."""
        return number in self._is_free

    def take(self) -> int | None:
        """A number nobody else holds, or None when all are in use."""
        if not self._free:
            return None
        number = self._free.pop()
        self._is_free.remove(number)
        return number

    def give_back(self, number: int) -> None:
        """Makes `number` available again; PoolMisuseError when it is free already or was never ours."""
        if number in self._is_free:
            raise PoolMisuseError(f"number {number} is freed twice; exactly one owner may give it back")
        if not self._first <= number < self._first + self.size:
            last = self._first + self.size - 1
            raise PoolMisuseError(f"number {number} is outside the pool; it hands out {self._first} to {last}")
        self._is_free.add(number)
        self._free.append(number)

    def all_numbers(self) -> set[int]:
        """Every number of the pool, free or not."""
        return set(range(self._first, self._first + self.size))

    def free_numbers(self) -> set[int]:
        """The numbers that are free now."""
        return set(self._is_free)


def slot_allocator(slots: int) -> FreeList:
    """The allocator of state slots 1 to `slots`; slot 0 stays reserved."""
    return FreeList(slots, first=RESERVED_SLOT + 1)


class PagedRows:
    """Token rows of the KV pool, handed out in pages of `page_size` consecutive rows."""

    def __init__(self, rows: int, page_size: int = 1) -> None:
        if rows % page_size:
            raise PoolMisuseError(f"{rows} rows are not whole pages of {page_size}; choose a multiple")
        self.page_size = page_size
        self.pages = FreeList(rows // page_size)

    def available(self) -> int:
        """Rows in free pages."""
        return len(self.pages) * self.page_size

    def needed(self, held: int, wanted: int) -> int:
        """Rows in new pages that a sequence of `held` rows must take to reach `wanted` rows."""
        return (-(-wanted // self.page_size) - -(-held // self.page_size)) * self.page_size

    def extend(self, rows: list[int], wanted: int) -> bool:
        """Grows `rows` to `wanted` entries in place; False, with `rows` unchanged, when pages run out."""
        if self.needed(len(rows), wanted) > self.available():
            return False
        while len(rows) < wanted:
            inside = len(rows) % self.page_size
            if inside:
                rows.append(rows[-1] + 1)
                continue
            page = self.pages.take()
            assert page is not None, "counted above"
            rows.append(page * self.page_size)
        return True

    def release(self, rows: list[int]) -> None:
        """Frees the pages of `rows`, which begin on a page; a last, partly filled page is freed whole."""
        for row in rows[:: self.page_size]:
            self.pages.give_back(row // self.page_size)
