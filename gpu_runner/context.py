"""The fingerprint of an execution: what must be equal between arms, by channel and class.

Names are stable. `NAME` stands for the name of an environment variable, `N` for the number of a GPU, `TOOL` for a tool.
All are identity, but for those marked (state) and (observed).

- host: machine_id boot_id cpu_model cpu_count memory_bytes kernel architecture operating_system image_digest;
  load_1m (observed)
- device: count; N.uuid N.name N.driver N.vbios N.memory_mib N.mig_mode N.compute_mode N.ecc_mode N.persistence_mode
  N.power_limit_w; N.memory_used_mib N.hardware_slowdown N.thermal_slowdown (state); N.sm_clock_mhz N.memory_clock_mhz
  N.clock_event_reasons N.temperature_c N.power_w N.utilization_percent (observed)
- software: commit tree_hash dirty build_commands build_environment.NAME toolchain.TOOL artefacts, and for pytest
  python packages
- suite: framework framework_version arguments tests prefix jobs shuffle_seed
- process: model environment_names environment.NAME ulimits cgroup_limits; run_seed left_processes (observed)
- files: restore cache_state cache_digest (observed when warm); left_behind left_behind_count
  big_files_resident (observed)
- pressure: memory_limit_bytes timeout_s test_timeout_s; memory_available_bytes (state); peak_bytes duration_s position
  device_processes (observed)

`tests` is the ordered list that runs, `prefix` its part before the victim. `environment_names` leaves out the variables
that any arm's treatment sets; each of those has a field `environment.NAME` of its own in every arm (None: unset), as
have the recorded ones, and each variable that a build treatment sets has `build_environment.NAME`. A warm cache is its
arm's own, so its digest is not compared between arms.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_runner import device, host
from gpu_runner.arms import arm_build, arm_environment, shuffle_seed
from gpu_runner.checkout import Snapshot
from gpu_runner.protocol import ArmJob, CacheState, ContextClass, ContextField, SuiteDefinition
from gpu_runner.residency import resident_share
from gpu_runner.surroundings import RECORDED
from gpu_runner.tree import Change

IDENTITY, STATE, OBSERVED = ContextClass.IDENTITY, ContextClass.STATE, ContextClass.OBSERVED
SHOWN_CHANGES = 100


def _fields(channel: str, context_class: ContextClass, values: Mapping[str, Any]) -> list[ContextField]:
    return [ContextField(channel, name, context_class, value) for name, value in values.items()]


def host_fields() -> list[ContextField]:
    """Return the channel host."""
    return _fields("host", IDENTITY, host.identity()) + _fields("host", OBSERVED, {"load_1m": os.getloadavg()[0]})


def device_fields() -> list[ContextField]:
    """Return the channel device, as it stands now."""
    devices = device.read_devices()
    fields = _fields("device", IDENTITY, {"count": len(devices)})
    for gpu in devices:
        for context_class, values in ((IDENTITY, gpu.identity), (STATE, gpu.state), (OBSERVED, gpu.observed)):
            fields += _fields("device", context_class, {f"{gpu.index}.{name}": item for name, item in values.items()})
    return fields


def software_fields(
    arm: ArmJob, arms: Sequence[ArmJob], suite: SuiteDefinition, snapshot: Snapshot
) -> list[ContextField]:
    """Return the channel software, but for `python` and `packages`, which the framework tells."""
    build = arm_build(suite, arm)
    names = {name for other in arms for name in arm_build(suite, other).environment}
    values = {
        "commit": snapshot.commit,
        "tree_hash": snapshot.tree_hash,
        "dirty": snapshot.is_dirty,
        "build_commands": list(build.commands),
        "artefacts": snapshot.artefacts,
    }
    values |= {f"build_environment.{name}": build.environment.get(name) for name in sorted(names)}
    values |= {f"toolchain.{name}": version for name, version in snapshot.toolchain.items()}
    return _fields("software", IDENTITY, values)


def suite_fields(
    arm: ArmJob, suite: SuiteDefinition, tests: Sequence[str], victim: str, version: str, session: Mapping[str, Any]
) -> list[ContextField]:
    """Return the channel suite, and what the framework told about its software."""
    values = {
        "framework": suite.framework,
        "framework_version": version,
        "arguments": list(suite.arguments),
        "tests": list(tests),
        "prefix": list(tests[: list(tests).index(victim)]) if victim in tests else list(tests),
        "jobs": 1,
        "shuffle_seed": shuffle_seed(arm),
    }
    told = {name: session[name] for name in ("python", "packages") if name in session}
    return _fields("suite", IDENTITY, values) + _fields("software", IDENTITY, told)


def process_fields(
    arms: Iterable[ArmJob], suite: SuiteDefinition, environment: Mapping[str, str], model: str
) -> list[ContextField]:
    """Return the channel process: the environment that the tests inherit, and their limits."""
    treated = {name for arm in arms for name in arm_environment(arm)}
    recorded = {name for name in environment if name in RECORDED or name.startswith("LC_")}
    shown = treated | recorded | set(suite.record_values)
    values: dict[str, Any] = {
        "model": model,
        "environment_names": sorted(set(environment) - treated),
        "ulimits": host.ulimits(),
        "cgroup_limits": host.cgroup_limits(),
    }
    values |= {f"environment.{name}": environment.get(name) for name in sorted(shown)}
    return _fields("process", IDENTITY, values)


def limit_fields(suite: SuiteDefinition) -> list[ContextField]:
    """Return the limits of the channel pressure."""
    values = {
        "memory_limit_bytes": suite.memory_limit_bytes,
        "timeout_s": suite.timeout_s,
        "test_timeout_s": suite.test_timeout_s,
    }
    return _fields("pressure", IDENTITY, values)


def files_fields(restore: str, cache_state: CacheState, cache_digest: str) -> list[ContextField]:
    """Return the identity of the channel files."""
    digest_class = IDENTITY if cache_state is CacheState.COLD else OBSERVED
    return [
        *_fields("files", IDENTITY, {"restore": restore, "cache_state": cache_state.value}),
        *_fields("files", digest_class, {"cache_digest": cache_digest}),
    ]


def before_fields(tree_files: Mapping[str, str]) -> list[ContextField]:
    """Return what stands right before an execution: free memory and the residency of the suite's big files."""
    memory = host.meminfo().get("MemAvailable")
    resident = {name: resident_share(path) for name, path in tree_files.items()}
    return [
        *_fields("pressure", STATE, {"memory_available_bytes": memory}),
        *_fields("pressure", OBSERVED, {"device_processes": list(device.read_processes())}),
        *_fields("files", OBSERVED, {"big_files_resident": resident}),
    ]


@dataclass(frozen=True, slots=True)
class Afterwards:
    """What an execution showed when it was over."""

    position: int
    run_seed: int
    duration_s: float
    peak_bytes: int
    left_processes: Sequence[str]
    changes: Sequence[Change]


def after_fields(after: Afterwards) -> list[ContextField]:
    """Return the observed fields of a finished execution."""
    shown = [f"{change.kind} {change.path}" for change in after.changes[:SHOWN_CHANGES]]
    return [
        *_fields("process", OBSERVED, {"run_seed": after.run_seed, "left_processes": list(after.left_processes)}),
        *_fields("files", OBSERVED, {"left_behind": shown, "left_behind_count": len(after.changes)}),
        *_fields(
            "pressure",
            OBSERVED,
            {"peak_bytes": after.peak_bytes, "duration_s": after.duration_s, "position": after.position},
        ),
    ]
