"""System calls that the standard library lacks, and what /proc says about processes."""

# /proc is read many times a second, and a Path costs more than the read.
# ruff: noqa: PTH110, PTH123, PTH208

from __future__ import annotations

import ctypes
import os
import signal
import time

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWNS = 0x00020000  # linux/sched.h
MS_REC = 16384  # linux/mount.h
MS_PRIVATE = 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_HAS_CHILDREN_FILE = os.path.exists("/proc/thread-self/children")


def become_subreaper() -> None:
    """Let orphaned descendants, also after setsid or a double fork, become children of this process."""
    _check(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent dies."""
    _check(_libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def enter_private_mounts() -> None:
    """Give this process mounts of its own; OSError where that is not permitted."""
    _check(_libc.unshare(CLONE_NEWNS), "unshare(CLONE_NEWNS)")
    mount("none", "/", None, MS_REC | MS_PRIVATE, None)


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None) -> None:
    """Mount, or raise OSError with the target."""
    arguments = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    result = _libc.mount(arguments[0], arguments[1], arguments[2], ctypes.c_ulong(flags), arguments[3])
    _check(result, f"mount({target})")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def process_ids() -> list[int]:
    """Return the ids of all visible processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat_fields(pid: int) -> list[str] | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The command stands in brackets and may hold anything: fields are counted from its last closing bracket.
    return text[text.rindex(")") + 2 :].split()


def start_ticks(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot; None when it is gone or a zombie."""
    fields = _stat_fields(pid)
    return None if fields is None or fields[0] in {"Z", "X"} else int(fields[19])


def ticks_now() -> float:
    """Return the current time in the unit of `start_ticks`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS_PER_S


def command_of(pid: int) -> str:
    """Return the command line of a process, at most 200 characters; its short name when there is none."""
    for name in ("cmdline", "comm"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                text = file.read(400).replace(b"\0", b" ").decode(errors="replace").strip()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return ""
        if text:
            return text[:200]
    return ""


def environment_of(pid: int) -> bytes:
    """Return the environment that a process started with, NUL-separated; empty when it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def children_of(pid: int) -> list[int]:
    """Return the direct children of a process, zombies included."""
    if not _HAS_CHILDREN_FILE:
        return _children_by_scan(pid)
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return []
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += [int(text) for text in file.read().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread that ended meanwhile: its children went to another thread
    return found


def _children_by_scan(parent: int) -> list[int]:
    found = []
    for pid in process_ids():
        fields = _stat_fields(pid)
        if fields is not None and int(fields[1]) == parent:
            found.append(pid)
    return found


def descendants_of(pid: int) -> list[int]:
    """Return all living descendants, parents before children."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for child in children_of(waiting.pop()):
            waiting.append(child)
            if start_ticks(child) is not None:
                found.append(child)
    return found


def resident_bytes(pids: list[int]) -> int:
    """Return the memory that the processes hold: private pages summed, the largest shared part counted once."""
    private = shared = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm", encoding="ascii") as file:
                fields = file.read().split()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        private += int(fields[1]) - int(fields[2])
        shared = max(shared, int(fields[2]))
    return (private + shared) * _PAGE_BYTES
