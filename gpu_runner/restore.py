"""Puts a snapshot back at the slot's one tree path before every execution, and tells afterwards what changed there."""

from __future__ import annotations

import os
import stat
from enum import StrEnum
from pathlib import Path

from gpu_runner import tree
from gpu_runner.checkout import Snapshot
from gpu_runner.sandbox import Ending, Limits, Sandbox
from gpu_runner.supervisor import Overlay
from gpu_runner.tree import Change, Mirror

PROBE_TIMEOUT_S = 10.0


class RestoreMode(StrEnum):
    """How the tree is restored; the same for all executions of a slot."""

    OVERLAY = "overlay"  # mounts of the command's own: instant, the snapshot cannot be written
    MIRROR = "mirror"  # a copy of what differs


class Restorer:
    """Restores trees in one slot."""

    def __init__(self, sandbox: Sandbox, mode: RestoreMode | None = None) -> None:
        """`mode` None: the overlay where this user may mount one on the slot's file system, else the mirror."""
        self.slot = sandbox.slot
        self.mode = mode or (RestoreMode.OVERLAY if _may_overlay(sandbox) else RestoreMode.MIRROR)
        self._mirror = Mirror(self.slot.tree, sandbox.life.check, self.slot.path / "tree.json")
        self._snapshot: Snapshot | None = None

    def restore(self, snapshot: Snapshot) -> Overlay | None:
        """Restore the tree; returns the overlay that the command must be started with, if any."""
        self._snapshot = snapshot
        if self.mode is RestoreMode.MIRROR:
            self._mirror.restore(snapshot.tree)
            return None
        return _overlay(self.slot.path / "overlay", snapshot.tree, self.slot.tree)

    def changes(self) -> list[Change]:
        """Return what differs from the snapshot since the last `restore`."""
        if self._snapshot is None:
            return []
        if self.mode is RestoreMode.MIRROR:
            return self._mirror.changes()
        return _overlay_changes(self.slot.path / "overlay" / "upper", self._snapshot.tree)


def _overlay(folder: Path, lower: Path, target: Path) -> Overlay:
    tree.remove(folder)
    tree.remove(target)
    for part in (folder / "upper", folder / "work", target):
        part.mkdir(parents=True)
    (folder / "upper").chmod(stat.S_IMODE(lower.stat().st_mode))
    return Overlay(str(lower), str(folder / "upper"), str(folder / "work"), str(target))


def _may_overlay(sandbox: Sandbox) -> bool:
    # The mount options separate folders by these characters.
    if set(",:\\") & set(str(sandbox.slot.path)):
        return False
    probe = sandbox.slot.path / "probe"
    tree.remove(probe)
    (probe / "lower").mkdir(parents=True)
    (probe / "lower" / "seen").touch()
    overlay = _overlay(probe / "overlay", probe / "lower", probe / "target")
    command = ["/bin/sh", "-c", "test -e seen && rm seen && mkdir -p a/b && mv a c"]
    ended = sandbox.run(command, overlay.target, {"PATH": os.defpath}, Limits(PROBE_TIMEOUT_S), overlay)
    return ended.ending is Ending.EXITED and ended.exit_code == 0


def _overlay_changes(upper: Path, lower: Path) -> list[Change]:
    found = []
    for path, info in tree.walk(upper, tree.IGNORED_NAMES):
        if stat.S_ISDIR(info.st_mode):
            continue
        if stat.S_ISCHR(info.st_mode) and info.st_rdev == 0:
            found.append(Change("deleted", path))
        else:
            found.append(Change("changed" if os.path.lexists(lower / path) else "created", path))
    return found
