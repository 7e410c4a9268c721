"""One runner as a child process: job in, messages out, ended with its whole tree when we let go of it."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

from gpu_runner.protocol import MalformedMessageError, read_line, write_line

GRACE_S = 10.0
CHUNK_BYTES = 65536


class RunnerProcess:
    """Spawn `python -m gpu_runner run`; its input stays open for its life, closing it ends its tree."""

    def __init__(self, job: Any, log_path: Path) -> None:
        """Start the runner on a job; what it says on standard error is appended to `log_path`."""
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log = log_path.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gpu_runner", "run"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=Path(__file__).resolve().parents[1],
        )
        self._input = cast("IO[bytes]", self._process.stdin)
        self._output = cast("IO[bytes]", self._process.stdout)
        # A runner that ended at once has said why on its output, and its exit code tells the rest.
        with contextlib.suppress(BrokenPipeError):
            self._input.write(write_line(job).encode())
            self._input.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def messages(self, tick_s: float) -> Iterator[Any]:
        """Give the runner's messages until its output ends, and None at least every `tick_s` seconds between."""
        os.set_blocking(self._output.fileno(), False)
        rest = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            while True:
                if not selector.select(tick_s):
                    yield None
                    continue
                chunk = os.read(self._output.fileno(), CHUNK_BYTES)
                if not chunk:
                    if rest:
                        raise MalformedMessageError(f"the runner ended inside a line: {rest[:80]!r}")
                    return
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield read_line(line.decode("utf-8", "replace"))
                yield None

    def end(self) -> int:
        """Close the runner's input, wait for its tree to go, kill it when it does not; return its exit code."""
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        try:
            code = self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._output.close()
        self._log.close()
        return code
