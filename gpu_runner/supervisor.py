"""The process between the runner and the processes of a suite: it reaps them, guards their memory and ends them all.

It is the subreaper of everything that the command starts, so that a process that changed its session or lost its
parent is still found. It lives as long as its control pipe is open: when the runner dies, however it dies, the pipe
closes and the tree ends. While it lives it holds the slot's lock open, so that no other runner starts beside what is
left of an old one.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from gpu_runner import linux

POLL_S = 0.1
KILL_PATIENCE_S = 15.0
END_TREE = b"K"
END_ORPHANS = b"O"


@dataclass(frozen=True, slots=True)
class Overlay:
    """Shows `lower` at `target`, writable; what is written goes to `upper`. Seen by the command's processes only."""

    lower: str
    upper: str
    work: str
    target: str

    def mount(self) -> None:
        """Mount it in mounts of this process's own; OSError where that is not permitted."""
        linux.enter_private_mounts()
        options = f"lowerdir={self.lower},upperdir={self.upper},workdir={self.work}"
        linux.mount("overlay", self.target, "overlay", 0, options)


@dataclass(frozen=True, slots=True)
class Order:
    """What to start: command, folder, whole environment, memory limit, overlay."""

    command: Sequence[str]
    cwd: str
    environment: Mapping[str, str]
    memory_limit_bytes: int | None
    overlay: Overlay | None


def supervise(order: Order, control: int, status: int, output: int) -> NoReturn:
    """Run the order in this forked process and exit. Status lines are JSON objects with the key `event`."""
    code = 1
    try:
        _Supervisor(order, control, status, output).run()
        code = 0
    finally:
        # The runner's open files, buffers and exit handlers are the parent's: leave without touching them.
        os._exit(code)


class _Supervisor:
    def __init__(self, order: Order, control: int, status: int, output: int) -> None:
        self.order = order
        self.control = control
        self.status = status
        self.output = output
        self.main_pid = 0
        self.main_status: int | None = None
        self.peak_bytes = 0

    def run(self) -> None:
        os.setsid()
        linux.become_subreaper()
        wakeup, wakeup_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        try:
            if self.order.overlay is not None:
                self.order.overlay.mount()
            self.start()
        except OSError as error:
            self.tell("not_started", error=str(error))
            return
        os.close(self.output)
        self.tell("started", pid=self.main_pid, start_ticks=linux.start_ticks(self.main_pid))
        self.watch(wakeup)
        self.finish()

    def tell(self, event: str, **values: Any) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self.status, json.dumps({"event": event, **values}).encode() + b"\n")

    def start(self) -> None:
        parent = os.getpid()
        failure, failure_write = os.pipe2(os.O_CLOEXEC)
        self.main_pid = os.fork()
        if self.main_pid == 0:
            try:
                self.become_command(parent)
            except OSError as error:
                os.write(failure_write, str(error).encode())
            finally:
                os._exit(127)
        os.close(failure_write)
        message = os.read(failure, 4096).decode()
        os.close(failure)
        if message:
            os.waitpid(self.main_pid, 0)
            raise OSError(message)

    def become_command(self, parent: int) -> NoReturn:
        os.setsid()
        linux.die_with_parent()
        if os.getppid() != parent:
            os._exit(127)
        signal.set_wakeup_fd(-1)
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        os.chdir(self.order.cwd)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(self.output, 1)
        os.dup2(self.output, 2)
        os.execvpe(self.order.command[0], list(self.order.command), dict(self.order.environment))  # noqa: S606

    def watch(self, wakeup: int) -> None:
        """Return when the command has ended or must end."""
        poll = select.poll()
        poll.register(wakeup, select.POLLIN)
        poll.register(self.control, select.POLLIN | select.POLLHUP)
        while True:
            self.reap()
            if self.main_status is not None or self.is_over_memory():
                return
            ready = dict(poll.poll(POLL_S * 1000))
            if wakeup in ready:
                os.read(wakeup, 4096)
            if self.control in ready and not self.obey():
                return

    def reap(self) -> bool:
        """Take the exit status of whoever ended; True while there are children."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.main_pid:
                self.main_status = status

    def is_over_memory(self) -> bool:
        used = linux.resident_bytes(linux.descendants_of(os.getpid()))
        self.peak_bytes = max(self.peak_bytes, used)
        limit = self.order.memory_limit_bytes
        if limit is None or used <= limit:
            return False
        self.tell("over_memory", used_bytes=used)
        return True

    def obey(self) -> bool:
        """Follow the runner's orders; False when the tree must end."""
        for order in os.read(self.control, 4096).split(b"\n")[:-1] or [END_TREE]:
            if not order.startswith(END_ORPHANS):
                return False
            since = float(order[1:])
            for orphan in linux.children_of(os.getpid()):
                if orphan != self.main_pid and (linux.start_ticks(orphan) or -1.0) >= since:
                    for pid in [orphan, *linux.descendants_of(orphan)]:
                        _kill(pid)
        return True

    def finish(self) -> None:
        """End every process that is left and tell how the command ended."""
        left = [linux.command_of(pid) for pid in linux.descendants_of(os.getpid()) if pid != self.main_pid]
        main_had_ended = self.main_status is not None
        give_up_at = time.monotonic() + KILL_PATIENCE_S
        while self.reap():
            stuck = linux.descendants_of(os.getpid())
            for pid in stuck:
                _kill(pid)
            if time.monotonic() > give_up_at:
                self.tell("stuck", processes=[f"{pid} {linux.command_of(pid)}" for pid in stuck])
                return
            time.sleep(0.002)
        exit_code = None if self.main_status is None else os.waitstatus_to_exitcode(self.main_status)
        self.tell(
            "ended",
            exit_code=exit_code if main_had_ended else None,
            peak_bytes=self.peak_bytes,
            left=left if main_had_ended else [],
        )


def _kill(pid: int) -> None:
    # EPERM: a set-user-id program. It is reported as stuck when it does not end by itself.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
