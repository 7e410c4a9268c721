"""Folders as values: hashes of their files, a mirroring copy, and what changed in them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Git's own folder and Python's byte code belong to no tree: neither is source, and both change by being looked at.
IGNORED_NAMES = frozenset({".git", "__pycache__"})

Stamp = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Change:
    """One difference of a folder from its snapshot: `kind` is created, changed or deleted."""

    kind: str
    path: str


def walk(root: Path, ignored: frozenset[str] = frozenset()) -> Iterator[tuple[str, os.stat_result]]:
    """Yield every entry below `root`, as relative path and lstat, a folder before what is in it, in a fixed order."""
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(root / folder) as entries:
                found = sorted((entry for entry in entries if entry.name not in ignored), key=lambda entry: entry.name)
        except (FileNotFoundError, PermissionError):
            continue  # a test deleted or locked it: what is in it cannot be seen
        for entry in found:
            path = f"{folder}/{entry.name}" if folder else entry.name
            info = entry.stat(follow_symlinks=False)
            yield path, info
            if stat.S_ISDIR(info.st_mode):
                waiting.append(path)


def tree_hash(root: Path, paths: Iterable[str] | None = None) -> str:
    """Return the SHA-256 over paths, kinds and contents of all files below `root`, or of `paths` (missing ones say so).

    Of a mode only the executable bit counts, as in git. Times and owners do not. `.git` and `__pycache__` are left out.
    """
    digest = hashlib.sha256()
    if paths is None:
        paths = (path for path, info in walk(root, IGNORED_NAMES) if not stat.S_ISDIR(info.st_mode))
    for path in sorted(path for path in paths if not IGNORED_NAMES.intersection(path.split("/"))):
        digest.update(f"{_content(root / path)} {path}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _content(path: Path) -> str:
    try:
        info = path.lstat()
    except FileNotFoundError:
        return "missing"
    if stat.S_ISLNK(info.st_mode):
        return "link " + hashlib.sha256(os.fsencode(path.readlink())).hexdigest()
    if not stat.S_ISREG(info.st_mode):
        return "special"
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except PermissionError:
        return "unreadable"
    return ("executable " if info.st_mode & stat.S_IXUSR else "file ") + digest


def file_paths(root: Path) -> frozenset[str]:
    """Return the paths of all files below `root`, `.git` and `__pycache__` left out."""
    return frozenset(path for path, info in walk(root, IGNORED_NAMES) if not stat.S_ISDIR(info.st_mode))


def remove(path: Path) -> None:
    """Delete a file or folder, whatever a test did to its permissions; nothing happens when it does not exist."""
    try:
        info = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(info.st_mode):
        path.unlink()
        return
    folders = [path]
    for folder in folders:  # grows while it is walked: parents stand before their children
        folder.chmod(0o700)
        with os.scandir(folder) as entries:
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                else:
                    Path(entry.path).unlink()
    for folder in reversed(folders):
        folder.rmdir()


def _stamp(info: os.stat_result) -> Stamp:
    # The change time cannot be set back by a program, so an edit that restores size and times is still seen.
    return (info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)


class Mirror:
    """Keeps `target` equal to a snapshot by copying what differs; it remembers what it wrote itself."""

    def __init__(self, target: Path, check: Callable[[], None], memory: Path | None = None) -> None:
        """`check` is called between files and may end the copying; `memory` keeps what was written for the next one."""
        self.target = target
        self.check = check
        self.memory = memory
        self._written: dict[str, tuple[Stamp, Stamp | None]] = {}
        if memory is not None and memory.exists():
            known = json.loads(memory.read_text("ascii"))
            self._written = {path: (tuple(pair[0]), pair[1] and tuple(pair[1])) for path, pair in known.items()}

    def restore(self, source: Path) -> None:
        """Make the target equal to `source`: contents, permissions, links and times."""
        if self.target.is_symlink() or self.target.is_file():
            self.target.unlink()
        self.target.mkdir(exist_ok=True)
        wanted = dict(walk(source))
        self._clear(wanted)
        folders = []
        for path, info in wanted.items():
            self.check()
            if stat.S_ISDIR(info.st_mode):
                (self.target / path).mkdir(exist_ok=True)
                folders.append((path, info))
            elif not self._is_untouched(path, info):
                _copy(source / path, self.target / path, info)
        for path, info in [*reversed(folders), ("", source.stat())]:
            (self.target / path).chmod(stat.S_IMODE(info.st_mode))
            os.utime(self.target / path, ns=(info.st_atime_ns, info.st_mtime_ns))
        self._written = {path: (_stamp(info), self._stamp_of(path, info)) for path, info in wanted.items()}
        if self.memory is not None:
            temporary = self.memory.with_name(self.memory.name + ".new")
            temporary.write_text(json.dumps(self._written), "ascii")
            temporary.replace(self.memory)

    def changes(self) -> list[Change]:
        """Return what is different now from what the last `restore` wrote, folders and ignored names left out."""
        found = []
        present = dict(walk(self.target, IGNORED_NAMES))
        for path, (source, written) in self._written.items():
            info = present.get(path)
            if stat.S_ISDIR(source[0]) or IGNORED_NAMES.intersection(path.split("/")):
                continue
            if info is None:
                found.append(Change("deleted", path))
            elif written is not None and _stamp(info) != written:
                found.append(Change("changed", path))
        created = (
            path for path, info in present.items() if path not in self._written and not stat.S_ISDIR(info.st_mode)
        )
        return found + [Change("created", path) for path in created]

    def _clear(self, wanted: dict[str, os.stat_result]) -> None:
        """Delete what is not wanted or of another kind, and make folders writable."""
        self.target.chmod(0o700)
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            with os.scandir(self.target / folder) as entries:
                found = list(entries)
            for entry in found:
                path = f"{folder}/{entry.name}" if folder else entry.name
                info = entry.stat(follow_symlinks=False)
                goal = wanted.get(path)
                if goal is None or stat.S_IFMT(goal.st_mode) != stat.S_IFMT(info.st_mode):
                    remove(self.target / path)
                elif stat.S_ISDIR(info.st_mode):
                    if stat.S_IMODE(info.st_mode) & 0o700 != 0o700:
                        (self.target / path).chmod(0o700)
                    waiting.append(path)

    def _is_untouched(self, path: str, info: os.stat_result) -> bool:
        source, written = self._written.get(path, (None, None))
        if written is None or source != _stamp(info):
            return False
        try:
            return _stamp((self.target / path).lstat()) == written
        except FileNotFoundError:
            return False

    def _stamp_of(self, path: str, info: os.stat_result) -> Stamp | None:
        return None if stat.S_ISDIR(info.st_mode) else _stamp((self.target / path).lstat())


def copy(source: Path, target: Path, check: Callable[[], None]) -> None:
    """Copy a folder to a place that does not exist yet: contents, permissions, links and times."""
    Mirror(target, check).restore(source)


def _copy(source: Path, target: Path, info: os.stat_result) -> None:
    if os.path.lexists(target):
        target.unlink()
    if stat.S_ISFIFO(info.st_mode):
        os.mkfifo(target, stat.S_IMODE(info.st_mode))
    elif stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode):
        shutil.copy2(source, target, follow_symlinks=False)
    else:
        target.touch()  # a socket or a device that a build left: its name is kept, it cannot be copied
