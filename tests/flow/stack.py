"""A real `likewise up` in its own process group, a private home, and what the tests ask of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VICTIM = "spec_decode_gate"
POLLUTER = "warm_plan_cache"
SIGNATURE = "failed|exit code 1|CHECK(got_prefix == want_prod) failed: # == #"
SEED = 17
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 200.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(home: Path, **extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LIKEWISE_")}
    settings = {"HOME": str(home), "PORT": str(free_port()), "LEASE_S": "6", "SWEEP_S": "1", "NUDGE_S": "2"}
    return kept | {f"LIKEWISE_{name}": value for name, value in (settings | extra).items()}


def likewise(env: dict[str, str], *arguments: str, code: int = 0) -> str:
    """Returns the output of a command; it must end with the exit code that is expected."""
    command = [sys.executable, "-c", "import sys; from service.cli import main; sys.exit(main())", *arguments]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == code, (
        f"{arguments} ended with {done.returncode}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    )
    return done.stdout


def until(claim: Callable[[], Any], what: str) -> Any:
    """Returns what the claim returns once it is true; asks again and again, without a fixed pause."""
    ticker = threading.Event()
    for _ in range(int(PATIENCE_S / 0.1)):
        found = claim()
        if found:
            return found
        ticker.wait(0.1)
    raise AssertionError(f"{what} did not happen within {PATIENCE_S:.0f} s")


class Up:
    """`likewise up` as a child process."""

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-c", "import sys; from service.cli import main; sys.exit(main(['up']))"]
        with (Path(self.env["LIKEWISE_HOME"]).parent / "up.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=self.env, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )
        until(self.answers, "`likewise up`")

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"`likewise up` ended with {self.process.returncode}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.env['LIKEWISE_PORT']}/readyz", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def child(self, word: str) -> int | None:
        """Returns the pid of the child whose command line has the word."""
        assert self.process is not None
        for pid, parent, command in processes():
            if parent == self.process.pid and word in command:
                return pid
        return None

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30)


def processes() -> Iterator[tuple[int, int, str]]:
    """Yields pid, parent and command line of every living process."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except (OSError, IndexError):
            continue
        if stat[0] not in "ZX":
            yield int(entry.name), int(stat[1]), command


def belonging_to(home: Path) -> list[tuple[int, str]]:
    """Returns the living processes that have the home in their environment or command line."""
    found = []
    for pid, _, command in processes():
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if f"{home}/".encode() in environ + b"\0" or f"{home}/" in command:
            found.append((pid, command))
    return [item for item in found if item[0] != os.getpid()]


def seeds_alive(home: Path) -> set[bytes]:
    """Returns the LIKEWISE_RUN_SEED of every living test process of this home's slots."""
    seeds = set()
    for pid, _, _ in processes():
        try:
            pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(str(home).encode() in pair for pair in pairs):
            seeds |= {pair for pair in pairs if pair.startswith(b"LIKEWISE_RUN_SEED=")}
    return seeds


@contextmanager
def up(env: dict[str, str]) -> Iterator[Up]:
    stack = Up(env)
    stack.start()
    try:
        yield stack
    finally:
        stack.stop()


def add_demo(env: dict[str, str]) -> None:
    from service.cli.demo import CTEST, make_repository

    source = make_repository(Path(env["LIKEWISE_HOME"]).parent / "engine", CTEST)
    likewise(env, "project", "add", "demo/engine", "--source", str(source))


def enqueue(env: dict[str, str], *extra: str) -> int:
    arguments = ["enqueue", "ab", "--victim", VICTIM, "--treat", f"exclude:{POLLUTER}", "--seed", str(SEED)]
    answer = likewise(env, *arguments, "--signature", SIGNATURE, "--json", *extra)
    return json.loads(answer)["experiment"]


def view(env: dict[str, str], number: int) -> dict[str, Any]:
    address = f"http://127.0.0.1:{env['LIKEWISE_PORT']}/v1/experiments/{number}"
    with urllib.request.urlopen(address, timeout=10) as answer:
        return json.loads(answer.read())


def finding(env: dict[str, str], number: int) -> dict[str, Any]:
    """Returns what must be the same wherever the experiment ran: verdict, counts, stop, sentence."""
    shown = json.loads(likewise(env, "show", str(number), "--json"))["finding"]
    arm = shown["arms"][0]
    return {key: shown[key] for key in ("verdict", "sentence", "stop_index", "blocks_counted")} | {
        "control": arm["control"],
        "treated": arm["treated"],
        "difference": arm["difference"],
    }
