"""GPU facts from nvidia-smi, each call a killable child under its own time-out; nothing on a host without it."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_runner.host import Answer, ask

QUERY_TIMEOUT_S = 20.0
# Query name -> field name and class; the names of nvidia-smi --help-query-gpu.
IDENTITY = {
    "uuid": "uuid",
    "name": "name",
    "driver_version": "driver",
    "vbios_version": "vbios",
    "memory.total": "memory_mib",
    "mig.mode.current": "mig_mode",
    "compute_mode": "compute_mode",
    "ecc.mode.current": "ecc_mode",
    "persistence_mode": "persistence_mode",
    "power.limit": "power_limit_w",
}
STATE = {
    "memory.used": "memory_used_mib",
    "clocks_event_reasons.hw_slowdown": "hardware_slowdown",
    "clocks_event_reasons.sw_thermal_slowdown": "thermal_slowdown",
}
OBSERVED = {
    "clocks.sm": "sm_clock_mhz",
    "clocks.mem": "memory_clock_mhz",
    "clocks_event_reasons.active": "clock_event_reasons",
    "temperature.gpu": "temperature_c",
    "power.draw": "power_w",
    "utilization.gpu": "utilization_percent",
}
# Before driver 535 the clock event reasons were called throttle reasons.
_OLD_NAMES = ("clocks_event_reasons", "clocks_throttle_reasons")


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU: its facts by field name, split by class."""

    index: int
    identity: Mapping[str, str | None]
    state: Mapping[str, str | None]
    observed: Mapping[str, str | None]


class DeviceUnreadableError(Exception):
    """nvidia-smi is there and did not answer: the host is ill."""


def read_devices() -> tuple[Device, ...]:
    """Return the GPUs that nvidia-smi lists, empty without nvidia-smi or without a GPU; DeviceUnreadableError."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    names = [*IDENTITY, *STATE, *OBSERVED]
    found = _query(program, f"--query-gpu={','.join(names)}")
    if found.exit_code != 0 and "not a valid field" in found.text.lower():
        found = _query(program, f"--query-gpu={','.join(name.replace(*_OLD_NAMES) for name in names)}")
    if found.exit_code != 0:
        if "no devices were found" in found.text.lower():
            return ()
        raise DeviceUnreadableError(found.text.strip()[-400:] or f"exit code {found.exit_code}")
    rows = csv.reader(io.StringIO(found.text), skipinitialspace=True)
    return tuple(_device(index, dict(zip(names, row, strict=False))) for index, row in enumerate(rows) if row)


def read_processes() -> tuple[str, ...]:
    """Return the compute processes on all GPUs as `pid, name, memory`; empty without nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    found = _query(program, "--query-compute-apps=pid,process_name,used_memory")
    return tuple(line.strip() for line in found.text.splitlines() if line.strip()) if found.exit_code == 0 else ()


def _query(program: str, query: str) -> Answer:
    answer = ask([program, query, "--format=csv,noheader,nounits"], QUERY_TIMEOUT_S)
    if answer is None:
        raise DeviceUnreadableError(f"{program} did not answer within {QUERY_TIMEOUT_S:g} s")
    return answer


def _device(index: int, row: Mapping[str, str]) -> Device:
    def part(names: Mapping[str, str]) -> dict[str, str | None]:
        values = {field: row.get(name) for name, field in names.items()}
        return {
            field: None if value in {None, "[N/A]", "[Not Supported]"} else value for field, value in values.items()
        }

    return Device(index, part(IDENTITY), part(STATE), part(OBSERVED))
