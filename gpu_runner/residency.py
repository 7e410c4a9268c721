"""How much of a file lies in the page cache, and putting it there."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_MAP_FAILED = ctypes.c_void_p(-1).value
_LOW_BIT = bytes(byte & 1 for byte in range(256))  # the other bits of mincore's answer mean nothing
CHUNK_BYTES = 16 * 1024 * 1024


def resident_share(path: str) -> float | None:
    """Return the share of a file's pages that are in memory, in [0, 1]; None when the kernel does not tell."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        size = os.fstat(descriptor).st_size
        if size == 0:
            return None
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == _MAP_FAILED:
            return None
        pages = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE
        resident = ctypes.create_string_buffer(pages)
        result = _libc.mincore(address, size, resident)
        _libc.munmap(address, size)
        return resident.raw[:pages].translate(_LOW_BIT).count(1) / pages if result == 0 else None
    finally:
        os.close(descriptor)


def read_through(path: Path, check: Callable[[], None]) -> None:
    """Read a file to its end, so that it is in the page cache as far as memory allows; `check` may end it."""
    with path.open("rb", buffering=0) as file:
        while file.read(CHUNK_BYTES):
            check()
