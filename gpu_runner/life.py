"""Whether the runner should go on: signals and the closing of standard input end it at the next safe point."""

from __future__ import annotations

import os
import select
import signal
from types import FrameType

from gpu_runner.failures import CancelledError

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Life:
    """The runner's reasons to end. A handler only notes the signal, so that no line and no file is cut in half."""

    def __init__(self, watched_input: int | None = None) -> None:
        """`watched_input`: a pipe that somebody holds open while the job is wanted; None: only signals end it."""
        self.watched_input = watched_input
        self.signal_number: int | None = None
        self.input_is_closed = False
        self.wakeup_fd, self._wakeup_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # A signal that whoever started the runner ignores (nohup, a shell's background job) stays ignored.
        wanted = [number for number in ENDING_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._previous = {number: signal.signal(number, self._note) for number in wanted}

    def close(self) -> None:
        """Give the signals back to whoever had them."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        os.close(self.wakeup_fd)
        os.close(self._wakeup_write)

    def check(self) -> None:
        """Return while the job is wanted; CancelledError when it is not."""
        self._look_at_input()
        if self.signal_number is not None:
            name = signal.Signals(self.signal_number).name
            raise CancelledError("cancelled", f"the runner received {name} and ended its processes")
        if self.input_is_closed:
            raise CancelledError(
                "input_closed",
                "standard input was closed before the job was done, so its processes were ended",
                "hold the pipe open while the job runs, or give the job as a file: run < job.json",
            )

    def file_descriptors(self) -> list[int]:
        """Return what to wait on besides one's own work: readable means that `check` has news."""
        watched = [] if self.watched_input is None or self.input_is_closed else [self.watched_input]
        return [self.wakeup_fd, *watched]

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal_number = number
        os.write(self._wakeup_write, b"\0")

    def _look_at_input(self) -> None:
        while self.watched_input is not None and not self.input_is_closed:
            poll = select.poll()
            poll.register(self.watched_input, select.POLLIN | select.POLLHUP)
            if not poll.poll(0):
                return
            self.input_is_closed = not os.read(self.watched_input, 65536)
