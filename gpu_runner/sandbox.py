"""Runs one command in a process tree of its own and returns how it ended, with nothing of it left alive."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from gpu_runner import linux
from gpu_runner.failures import RunnerError
from gpu_runner.life import Life
from gpu_runner.slot import SLOT_MARK, Slot
from gpu_runner.supervisor import END_ORPHANS, END_TREE, Order, Overlay, supervise

TICK_S = 0.05
OUTPUT_TAIL_BYTES = 64 * 1024


class Ending(StrEnum):
    """Why a command ended."""

    EXITED = "exited"
    TIMED_OUT = "timed_out"  # the whole command
    TEST_TIMED_OUT = "test_timed_out"  # the deadline of its observer
    OVER_MEMORY = "over_memory"
    STUCK = "stuck"  # its processes cannot be killed: the host is ill
    NOT_STARTED = "not_started"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended. `exit_code`: negative for a signal, None unless it ended by itself."""

    ending: Ending
    exit_code: int | None
    output: bytes
    peak_bytes: int
    left_processes: tuple[str, ...]
    detail: str = ""


class Observer(Protocol):
    """Follows a running command."""

    def output(self, data: bytes) -> None:
        """Take a piece of the command's output."""

    def tick(self, controls: Controls) -> None:
        """Look around; called a few times a second."""


class Collector:
    """An observer that keeps the whole output."""

    def __init__(self) -> None:
        self.data = bytearray()

    def output(self, data: bytes) -> None:
        """Keep a piece."""
        self.data += data

    def tick(self, controls: Controls) -> None:
        """Let the command run."""


class Controls:
    """What an observer may do about the running command."""

    def __init__(self, control: int) -> None:
        self._control = control
        self.deadline: float | None = None

    def end_orphans(self, since_ticks: float) -> None:
        """End the processes that lost their parents and started at `since_ticks` or later."""
        self._send(END_ORPHANS + repr(since_ticks).encode())

    def end_tree(self) -> None:
        """End everything."""
        self._send(END_TREE)

    def _send(self, order: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._control, order + b"\n")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one command; an observer's deadline (monotonic clock) comes on top."""

    timeout_s: float
    memory_bytes: int | None = None


class Sandbox:
    """Starts commands for one slot, one at a time."""

    def __init__(self, slot: Slot, life: Life) -> None:
        self.slot = slot
        self.life = life

    def run(
        self,
        command: Sequence[str],
        cwd: str,
        environment: Mapping[str, str],
        limits: Limits,
        overlay: Overlay | None = None,
        observer: Observer | None = None,
    ) -> Ended:
        """Return how the command ended. CancelledError, with the tree ended, when the job is no longer wanted."""
        self.life.check()
        marked = {**environment, SLOT_MARK: str(self.slot.path)}
        order = Order(command, cwd, marked, limits.memory_bytes, overlay)
        control_read, control = os.pipe2(os.O_CLOEXEC)
        status, status_write = os.pipe2(os.O_CLOEXEC)
        output, output_write = os.pipe2(os.O_CLOEXEC)
        supervisor = os.fork()
        if supervisor == 0:
            for unused in (control, status, output):
                os.close(unused)
            supervise(order, control_read, status_write, output_write)
        for unused in (control_read, status_write, output_write):
            os.close(unused)
        self.slot.note_processes([supervisor])
        run = _Run(self.life, Controls(control), status, output, limits, observer)
        try:
            return run.follow(lambda pid: self.slot.note_processes([supervisor, pid]))
        finally:
            os.close(control)
            os.waitpid(supervisor, 0)
            os.close(status)
            os.close(output)
            if not run.is_stuck:
                self.slot.note_processes([])


class _Run:
    def __init__(
        self, life: Life, controls: Controls, status: int, output: int, limits: Limits, observer: Observer | None
    ) -> None:
        self.life = life
        self.controls = controls
        self.status = status
        self.output = output
        self.ends_at = time.monotonic() + limits.timeout_s
        self.observer = observer
        self.tail = bytearray()
        self.events: dict[str, dict[str, Any]] = {}
        self.ending = Ending.EXITED
        self.is_stuck = False
        self._partial = b""

    def follow(self, note_started: Any) -> Ended:
        with selectors.DefaultSelector() as selector:
            selector.register(self.status, selectors.EVENT_READ)
            selector.register(self.output, selectors.EVENT_READ)
            for descriptor in self.life.file_descriptors():
                selector.register(descriptor, selectors.EVENT_READ)
            is_told_to_end = has_noted = False
            while self.status in selector.get_map():
                ready = {key.fd for key, _ in selector.select(TICK_S)}
                if self.output in ready:
                    self._read_output(selector)
                if self.status in ready:
                    self._read_status(selector)
                if not has_noted and "started" in self.events:
                    note_started(self.events["started"]["pid"])
                    has_noted = True
                self.life.check()
                if self.observer is not None:
                    self.observer.tick(self.controls)
                if not is_told_to_end and self._is_late():
                    self.controls.end_tree()
                    is_told_to_end = True
            while self.output in selector.get_map():
                self._read_output(selector)
        if self.observer is not None:
            self.observer.tick(self.controls)
        return self._ended()

    def _is_late(self) -> bool:
        now = time.monotonic()
        if now > self.ends_at:
            self.ending = Ending.TIMED_OUT
        elif self.controls.deadline is not None and now > self.controls.deadline:
            self.ending = Ending.TEST_TIMED_OUT
        return self.ending is not Ending.EXITED

    def _read_output(self, selector: selectors.BaseSelector) -> None:
        data = os.read(self.output, 65536)
        if not data:
            selector.unregister(self.output)
            return
        self.tail += data
        if len(self.tail) > 2 * OUTPUT_TAIL_BYTES:
            del self.tail[:-OUTPUT_TAIL_BYTES]
        if self.observer is not None:
            self.observer.output(data)

    def _read_status(self, selector: selectors.BaseSelector) -> None:
        data = os.read(self.status, 65536)
        if not data:
            selector.unregister(self.status)
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            self.events[event["event"]] = event

    def _ended(self) -> Ended:
        detail = ""
        ended = self.events.get("ended", {})
        if "not_started" in self.events:
            self.ending, detail = Ending.NOT_STARTED, self.events["not_started"]["error"]
        elif "stuck" in self.events:
            self.ending, detail = Ending.STUCK, "; ".join(self.events["stuck"]["processes"])
            self.is_stuck = True
        elif not ended:
            raise RunnerError("supervisor_died", "the process that watches over the suite was killed from outside")
        elif "over_memory" in self.events:
            self.ending, detail = Ending.OVER_MEMORY, f"{self.events['over_memory']['used_bytes']} bytes in use"
        return Ended(
            self.ending,
            ended.get("exit_code") if self.ending is Ending.EXITED else None,
            bytes(self.tail[-OUTPUT_TAIL_BYTES:]),
            int(ended.get("peak_bytes", 0)),
            tuple(ended.get("left", ())),
            detail,
        )


def ticks_now() -> float:
    """Return the current time in the unit of process start times."""
    return linux.ticks_now()
