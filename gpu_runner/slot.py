"""The runner's private folder: one lock, one tree, one set of private folders, and nothing left of an older runner."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_runner import linux
from gpu_runner.failures import RunnerError

PATIENCE_S = 20.0
# Names the slot in the environment of every process that runs for it, so that leftovers can be found.
SLOT_MARK = "LIKEWISE_SLOT"


class Slot:
    """A locked slot folder. The lock is held while this process, or a supervisor that it forked, lives."""

    def __init__(self, path: Path) -> None:
        """Lock the folder and end what an older runner left.

        RunnerError `slot_busy`, `slot_unwritable` or `slot_occupied`.
        """
        self.path = Path(path).absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise RunnerError(
                "slot_unwritable",
                f"the slot folder {str(self.path)!r} cannot be written: {error.strerror}",
                "choose a folder that this user can write, or fix its permissions",
            ) from None
        self._take_lock()
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, _identity(os.getpid()), 0)
        self._end_leftovers()

    def close(self) -> None:
        """Unlock."""
        os.close(self._lock)

    @property
    def tree(self) -> Path:
        """The one absolute path where every arm's tree is seen."""
        return self.path / "tree"

    @property
    def private(self) -> Path:
        """The home, temporary and cache folders of the execution that runs."""
        return self.path / "private"

    def note_processes(self, pids: Sequence[int]) -> None:
        """Record the processes that must be gone before another runner may start."""
        text = json.dumps([json.loads(_identity(pid)) for pid in pids])
        temporary = self.path / "processes.json.new"
        temporary.write_text(text)
        temporary.replace(self.path / "processes.json")

    def _take_lock(self) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                owner = _parse(os.pread(self._lock, 200, 0))
                # A dead owner's supervisor still holds the lock while it ends the old processes: wait for it.
                if _is_alive(owner) or time.monotonic() > give_up_at:
                    os.close(self._lock)
                    raise RunnerError(
                        "slot_busy",
                        f"the slot {str(self.path)!r} is in use by process {owner.get('pid', 'unknown')}",
                        "wait until its block has ended, or give this runner another slot folder",
                    ) from None
                time.sleep(0.02)

    def _end_leftovers(self) -> None:
        record = self.path / "processes.json"
        noted = _parse(record.read_bytes(), []) if record.exists() else []
        if not noted:
            return
        give_up_at = time.monotonic() + PATIENCE_S
        while left := [pid for pid in linux.process_ids() if self._is_leftover(pid, noted)]:
            for pid in left:
                self._kill(pid, noted)
            if time.monotonic() > give_up_at:
                names = "; ".join(f"{pid} {linux.command_of(pid)}" for pid in left)
                raise RunnerError(
                    "slot_occupied",
                    f"processes of an earlier block are still alive and cannot be killed: {names}",
                    "end them, or restart the host, before this slot is used again",
                )
            time.sleep(0.01)
        self.note_processes([])

    def _is_leftover(self, pid: int, noted: list[dict[str, int]]) -> bool:
        started = linux.start_ticks(pid)
        if started is None or pid == os.getpid():
            return False
        if {"pid": pid, "start_ticks": started} in noted:
            return True
        marks = linux.environment_of(pid).split(b"\0")
        return os.fsencode(f"{SLOT_MARK}={self.path}") in marks

    def _kill(self, pid: int, noted: list[dict[str, int]]) -> None:
        # The process is held by a descriptor and looked at again, so that a reused id is never hit.
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            if self._is_leftover(pid, noted):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return
        finally:
            os.close(descriptor)


def _identity(pid: int) -> bytes:
    return json.dumps({"pid": pid, "start_ticks": linux.start_ticks(pid)}).encode()


def _parse(text: bytes, otherwise: Any = None) -> Any:
    """Read a record that a killed runner may have left half-written."""
    try:
        return json.loads(text)
    except ValueError:
        return {} if otherwise is None else otherwise


def _is_alive(owner: dict[str, int]) -> bool:
    pid = owner.get("pid")
    return pid is not None and linux.start_ticks(pid) == owner.get("start_ticks")
