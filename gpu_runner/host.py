"""What the machine says about itself: host identity, tools, limits, load. Read once where it cannot change."""

from __future__ import annotations

import functools
import os
import platform
import re
import resource
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TOOL_TIMEOUT_S = 10.0
# The tools whose versions are part of the software that a build or a test sees.
TOOLS = {
    "cc": ("cc", "--version"),
    "cxx": ("c++", "--version"),
    "cmake": ("cmake", "--version"),
    "cuda": ("nvcc", "--version"),
}
ULIMITS = {
    "open_files": resource.RLIMIT_NOFILE,
    "stack_bytes": resource.RLIMIT_STACK,
    "core_bytes": resource.RLIMIT_CORE,
    "address_space_bytes": resource.RLIMIT_AS,
    "locked_bytes": resource.RLIMIT_MEMLOCK,
    "processes": resource.RLIMIT_NPROC,
}


def read_text(path: str) -> str | None:
    """Return a small file's stripped text; None when it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


@functools.cache
def identity() -> dict[str, str | int | None]:
    """Return the facts of this machine that hold until its next boot."""
    cpu = re.search(r"^(?:model name|Model|Processor)\s*:\s*(.+)$", read_text("/proc/cpuinfo") or "", re.MULTILINE)
    release = re.search(r'^PRETTY_NAME="?(.*?)"?$', read_text("/etc/os-release") or "", re.MULTILINE)
    return {
        "machine_id": read_text("/etc/machine-id") or platform.node(),
        "boot_id": read_text("/proc/sys/kernel/random/boot_id"),
        "cpu_model": cpu[1] if cpu else None,
        "cpu_count": len(os.sched_getaffinity(0)),
        "memory_bytes": meminfo().get("MemTotal"),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "operating_system": release[1] if release else None,
        "image_digest": os.environ.get("LIKEWISE_IMAGE_DIGEST"),
    }


def meminfo() -> dict[str, int]:
    """Return /proc/meminfo in bytes."""
    lines = (read_text("/proc/meminfo") or "").splitlines()
    found = (re.match(r"(\S+):\s+(\d+) kB", line) for line in lines)
    return {match[1]: int(match[2]) * 1024 for match in found if match}


def kernel_kills() -> int | None:
    """Return how often the kernel has killed a process for memory since boot."""
    match = re.search(r"^oom_kill (\d+)$", read_text("/proc/vmstat") or "", re.MULTILINE)
    return int(match[1]) if match else None


def ulimits() -> dict[str, int]:
    """Return the soft limits that commands inherit; -1 is none."""
    return {name: resource.getrlimit(number)[0] for name, number in ULIMITS.items()}


def cgroup_limits() -> dict[str, str | None]:
    """Return the memory and CPU limits of this process's control group, as the kernel spells them."""
    groups = dict(line.split(":", 2)[1:] for line in (read_text("/proc/self/cgroup") or "").splitlines())
    unified = f"/sys/fs/cgroup{groups.get('', '/')}"
    return {
        "memory": read_text(f"{unified}/memory.max")
        or read_text(f"/sys/fs/cgroup/memory{groups.get('memory', '/')}/memory.limit_in_bytes"),
        "cpu": read_text(f"{unified}/cpu.max")
        or read_text(f"/sys/fs/cgroup/cpu{groups.get('cpu', '/')}/cpu.cfs_quota_us"),
    }


def toolchain(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Return the first line that each tool on the environment's PATH prints about its version; None without it."""
    return {name: _tool_version(shutil.which(tool[0], path=environment.get("PATH")), tool[1])
            for name, tool in TOOLS.items()}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """What a short command printed, and its exit code."""

    exit_code: int
    text: str


def ask(command: Sequence[str], timeout_s: float) -> Answer | None:
    """Return the answer of a short command; None when it does not start or does not end in time.

    A child that even SIGKILL does not end (it hangs in a driver) is left behind rather than waited for.
    """
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError:
        return None
    try:
        output, _ = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        try:
            child.communicate(timeout=1.0)
        except subprocess.TimeoutExpired:
            return None
        return None
    return Answer(child.returncode, output.decode(errors="replace"))


@functools.cache
def _tool_version(program: str | None, option: str) -> str | None:
    if program is None:
        return None
    answer = ask([program, option], TOOL_TIMEOUT_S)
    if answer is None or answer.exit_code != 0:
        return None
    lines = [line for line in answer.text.splitlines() if line.strip()]
    # nvcc puts its version on its last lines, all others on their first.
    wanted = [line for line in lines if "release" in line] or lines[:1]
    return wanted[-1].strip() if wanted else None
