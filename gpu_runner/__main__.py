"""`python -m gpu_runner run | batch | doctor`: a JSON job in, JSON lines out; standard library only.

    run     one job (prepare or block) on standard input. A pipe must stay open while the job runs: closing it ends the
            job and its processes. A file may be redirected.
    batch   --source DIR [--slot DIR] [--resume FILE] < plan.jsonl > evidence.jsonl: a whole plan, detached
    hash    DIR: what a detached plan holds the tree to
    doctor  [--json]: what this host can run, and what to do about the rest

Exit codes: 0 done, 1 the job could not be done (a `failure` line says why), 2 usage.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_runner import batch, host, preflight
from gpu_runner.failures import RunnerError
from gpu_runner.life import Life
from gpu_runner.loop import run_job
from gpu_runner.protocol import BlockJob, Failure, Hello, MalformedMessageError, PrepareJob, read_line, write_line
from gpu_runner.tree import tree_hash

RUNNER_VERSION = "0.1.0"


class Speaker:
    """Writes each message as one whole line, at once."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def emit(self, message: Any) -> None:
        """Write one line; RunnerError `output_closed` when nobody reads any more."""
        rest = write_line(message).encode("utf-8", "backslashreplace")
        try:
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]
        except BrokenPipeError:
            raise RunnerError("output_closed", "nobody reads the runner's output any more") from None


def hello() -> Hello:
    """Return who speaks."""
    identity = host.identity()
    return Hello(RUNNER_VERSION, platform.python_version(), platform.node(), str(identity["boot_id"]), os.getpid())


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code of the command line."""
    parser = argparse.ArgumentParser(prog="python -m gpu_runner", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run", help="one job on standard input")
    batch_parser = commands.add_parser("batch", help="a whole plan on standard input, detached")
    batch_parser.add_argument("--source", required=True, type=Path, help="the tree of the plan, with or without git")
    batch_parser.add_argument("--slot", type=Path, default=Path("likewise-slot"), help="folder for trees and caches")
    batch_parser.add_argument(
        "--resume", type=Path, help="partial evidence of the same plan, in another file than the output"
    )
    doctor_parser = commands.add_parser("doctor", help="what this host can run")
    doctor_parser.add_argument("--json", action="store_true", help="as JSON")
    hash_parser = commands.add_parser("hash", help="the hash that a detached plan holds a tree to")
    hash_parser.add_argument("folder", type=Path)
    chosen = parser.parse_args(arguments)
    if chosen.command == "hash":
        print(tree_hash(chosen.folder))
        return 0
    if chosen.command == "doctor":
        return doctor(chosen.json)
    speaker = Speaker(_own_output())
    is_pipe = stat.S_ISFIFO(os.fstat(0).st_mode) or stat.S_ISSOCK(os.fstat(0).st_mode)
    life = Life(0 if is_pipe and chosen.command == "run" else None)
    try:
        if chosen.command == "run":
            job = _read_job(is_pipe)
            speaker.emit(hello())
            run_job(job, life, speaker.emit)
        else:
            batch.run_plan(sys.stdin.buffer, chosen.source, chosen.slot, chosen.resume, life, speaker.emit, hello())
    except RunnerError as error:
        if error.code != "output_closed":
            speaker.emit(Failure(error.code, error.message, error.way_out))
        return 1
    except OSError as error:
        where = f" {error.filename!r}" if error.filename else ""
        message = f"{error.strerror or error}{where}"
        speaker.emit(Failure("host_failed", message, "look at the disk, the memory and the limits of this host"))
        return 1
    finally:
        life.close()
    return 0


def _own_output() -> int:
    """Return a descriptor for the messages that no child inherits; stray prints go to standard error."""
    own = os.dup(1)
    os.dup2(2, 1)
    return own


def _read_job(is_pipe: bool) -> PrepareJob | BlockJob:
    """Return the job: the first line of a pipe, which stays open, or all of a file."""
    data = b""
    while b"\n" not in data or not is_pipe:
        piece = os.read(0, 1 << 20)
        if not piece:
            break
        data += piece
    text = (data.partition(b"\n")[0] if is_pipe else data).decode("utf-8", errors="replace")
    try:
        job = read_line(text)
    except MalformedMessageError as error:
        raise RunnerError("malformed_job", str(error), "write one JSON job; see gpu_runner.protocol") from None
    if not isinstance(job, PrepareJob | BlockJob):
        raise RunnerError("malformed_job", f"a {job.type!r} message is no job", "send a prepare or a block job")
    return job


def doctor(as_json: bool) -> int:
    """Print the checks; exit code 1 when one of them stops the runner from running anything."""
    checks = preflight.check_host()
    if as_json:
        print(json.dumps([check.as_json() for check in checks], ensure_ascii=False))
    else:
        for check in checks:
            print(f"{'ok  ' if check.is_ok else 'MISSING' if check.is_needed else 'none'}  {check.name}: {check.found}")
            if not check.is_ok and check.way_out:
                print(f"      {check.way_out}")
    return 1 if any(check.is_needed and not check.is_ok for check in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
