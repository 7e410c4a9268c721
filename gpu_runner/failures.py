"""The runner's one error: a stable code, a sentence with the value that was wrong, and the way out."""

from __future__ import annotations


class RunnerError(Exception):
    """The job cannot be done; becomes a `Failure` line, or the error of one prepared arm."""

    def __init__(self, code: str, message: str, way_out: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.way_out = way_out


class CancelledError(RunnerError):
    """Somebody ended the job: a signal, or the other end of standard input is gone."""
