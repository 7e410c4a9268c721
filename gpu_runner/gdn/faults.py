"""Historical faults that can be switched back on, so that Likewise has something real to find.

`LIKEWISE_GDN_FAULT=a,b` switches on by id. A fault restores a mechanism that once shipped; none adds noise.
"""

from __future__ import annotations

import os
from enum import StrEnum
from functools import lru_cache

VARIABLE = "LIKEWISE_GDN_FAULT"
PRODUCTION_VARIABLE = "LIKEWISE_GDN_PRODUCTION"


class FaultError(ValueError):
    """LIKEWISE_GDN_FAULT names an unknown fault, or a fault is on in production mode."""


class Fault(StrEnum):
    """Every fault that can be injected; the value is its id."""

    SLOT_RELEASE_ON_REJECT = "slot_release_on_reject"
    REJECT_KEEPS_STALE_COW = "reject_keeps_stale_cow"
    REJECT_LEAK = "reject_leak"
    DECODE_ADVANCES_CHECKPOINT = "decode_advances_checkpoint"
    MASK_IS_LIST = "mask_is_list"
    NEXT_MASK_WHEN_NO_OVERLAP = "next_mask_when_no_overlap"
    H_SNAPSHOT_BF16 = "h_snapshot_bf16"
    OVERLAP_LOOKAHEAD = "overlap_lookahead"
    SHARED_SCRATCH_RELEASE = "shared_scratch_release"
    AI_NOT_ZEROED = "ai_not_zeroed"
    GROW_FREES_CAPTURED = "grow_frees_captured"
    UNGUARDED_FIRST_LOAD = "unguarded_first_load"
    AUTOTUNE_WRITES_STATE = "autotune_writes_state"
    ENV_LEAK = "env_leak"
    AUTOTUNE_DISK_CACHE = "autotune_disk_cache"
    UNSEEDED_PROMPT_LENGTHS = "unseeded_prompt_lengths"


MECHANISM: dict[Fault, str] = {
    Fault.SLOT_RELEASE_ON_REJECT: "a rejected admission frees the copied slot; the next match may differ",
    Fault.REJECT_KEEPS_STALE_COW: "a rejected admission keeps a copy source that may be recycled",
    Fault.REJECT_LEAK: "a rejected admission never frees its slot",
    Fault.DECODE_ADVANCES_CHECKPOINT: "decode moves prefill checkpoints in deterministic mode",
    Fault.MASK_IS_LIST: "the track mask of decode is a list where a tensor is due",
    Fault.NEXT_MASK_WHEN_NO_OVERLAP: "the next track mask exists although overlap is off",
    Fault.H_SNAPSHOT_BF16: "checkpoints inside a prefill are copied from the rounded chunk state",
    Fault.OVERLAP_LOOKAHEAD: "a checkpoint's length ignores the step already in flight",
    Fault.SHARED_SCRATCH_RELEASE: "scratch is keyed by the handle of a stream, released by any owner of it",
    Fault.AI_NOT_ZEROED: "the upper tiles of the inverse keep whatever the buffer held",
    Fault.GROW_FREES_CAPTURED: "growing scratch frees a buffer that a captured plan still uses",
    Fault.UNGUARDED_FIRST_LOAD: "two threads may load one kernel; the second sees a half-made entry",
    Fault.AUTOTUNE_WRITES_STATE: "first-use benchmarking repeats the kernel that updates the state in place",
    Fault.ENV_LEAK: "a test sets a realization variable and does not restore it",
    Fault.AUTOTUNE_DISK_CACHE: "a tactic file on disk picks the realization of later processes",
    Fault.UNSEEDED_PROMPT_LENGTHS: "prompt lengths of the KL tests are drawn without a seed, once, and kept on disk",
}


@lru_cache(maxsize=8)
def parse(text: str) -> frozenset[Fault]:
    """The faults that a comma-separated list names; the empty text names none.

    Raises FaultError for an unknown id.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    ids = {str(fault) for fault in Fault}
    for name in names:
        if name not in ids:
            known = ", ".join(sorted(Fault))
            raise FaultError(f"unknown fault {name!r} in {VARIABLE}; known: {known}")
    return frozenset(Fault(name) for name in names)


def active() -> frozenset[Fault]:
    """The faults that are on in this process; FaultError when production mode forbids them."""
    faults = parse(os.environ.get(VARIABLE, ""))
    if faults and in_production():
        refuse_in_production(production=True)
    return faults


def in_production() -> bool:
    """Whether the environment says production: any value but 0 does, a doubt must not let faults in."""
    return os.environ.get(PRODUCTION_VARIABLE, "") not in {"", "0"}


def is_on(fault: Fault) -> bool:
    """Whether this fault is on."""
    return fault in active()


def refuse_in_production(*, production: bool) -> None:
    """Raises FaultError when `production` is true and any fault is on."""
    faults = parse(os.environ.get(VARIABLE, ""))
    if production and faults:
        names = ",".join(sorted(faults))
        raise FaultError(f"faults {names} are on in production mode; unset {VARIABLE}")


def counters() -> dict[str, int]:
    """One counter `gdn.fault.<id>` = 1 for each fault that is on, so that every result names its faults."""
    return {f"gdn.fault.{fault}": 1 for fault in sorted(active())}
