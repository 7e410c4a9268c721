"""What this host can run: each check with what was found and the way out."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_runner import device, frameworks, host
from gpu_runner.failures import RunnerError
from gpu_runner.life import Life
from gpu_runner.restore import RestoreMode, Restorer
from gpu_runner.sandbox import Sandbox
from gpu_runner.slot import Slot
from gpu_runner.surroundings import search_path


@dataclass(frozen=True, slots=True)
class Check:
    """One finding of `doctor`. `is_needed`: without it nothing runs."""

    name: str
    is_ok: bool
    found: str
    way_out: str = ""
    is_needed: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def check_host() -> tuple[Check, ...]:
    """Return the checks of this host, frameworks first."""
    environment = {**os.environ, "PATH": search_path(os.environ.get("PATH"))}
    found = [_framework(name, environment) for name in frameworks.names()]
    usable = any(check.is_ok for check in found)
    names = ", ".join(frameworks.names())
    found.append(
        Check("a framework", usable, "at least one" if usable else "none", f"install one of {names}", is_needed=True)
    )
    return (*found, _git(), _memory(), *_processes(), _devices())


def _framework(name: str, environment: dict[str, str]) -> Check:
    try:
        return Check(name, is_ok=True, found=frameworks.get(name).find(environment))
    except RunnerError as error:
        return Check(name, is_ok=False, found=error.message, way_out=error.way_out)


def _git() -> Check:
    program = shutil.which("git")
    way_out = "install git; without it only exported folders can be run, one commit each"
    return Check("git", program is not None, program or "not on the PATH", way_out)


def _memory() -> Check:
    available = host.meminfo().get("MemAvailable", 0)
    return Check("memory", available > 0, f"{available / 1024**3:.1f} GiB available")


def _processes() -> tuple[Check, ...]:
    """Really start a process in a slot, and see how a tree would be restored there."""
    life = Life()
    folder = tempfile.mkdtemp(prefix="likewise-doctor-")
    try:
        slot = Slot(Path(folder))
        try:
            mode = Restorer(Sandbox(slot, life)).mode
        finally:
            slot.close()
    except (RunnerError, OSError) as error:
        return (
            Check("process trees", is_ok=False, found=str(error), way_out="run on Linux 5.4 or newer", is_needed=True),
        )
    finally:
        life.close()
        shutil.rmtree(folder)
    way_out = "an overlay needs CAP_SYS_ADMIN and a slot on ext4, xfs or btrfs; a copy of the tree is used instead"
    return (
        Check("process trees", is_ok=True, found="supervised, with parent death and sub-reaper", is_needed=True),
        Check("overlay", mode is RestoreMode.OVERLAY, mode.value, way_out),
    )


def _devices() -> Check:
    try:
        devices = device.read_devices()
    except device.DeviceUnreadableError as error:
        return Check("GPU", is_ok=False, found=str(error), way_out="look at dmesg and `nvidia-smi`; restart the host")
    names = ", ".join(str(gpu.identity["name"]) for gpu in devices)
    return Check("GPU", bool(devices), names or "none", "suites without GPU tests need none")
