"""From a source, a commit and a build to a snapshot: the built tree that every execution of an arm starts from.

A snapshot is made at the one path where it will be seen later (`slot/tree`), then moved to `slot/snapshots/KEY`. A
source with a `.git` is cloned, so that `git describe` works in its builds; any other folder is copied, and its commit
is its tree hash.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_runner import host, tree
from gpu_runner.failures import RunnerError
from gpu_runner.protocol import Build, SuiteDefinition, canonical_digest
from gpu_runner.sandbox import Collector, Ended, Ending, Limits, Sandbox
from gpu_runner.surroundings import compose, private_folders

KEPT_SNAPSHOTS = 12
GIT_TIMEOUT_S = 1800.0
SHOWN_OUTPUT = 4000
_COMMIT_NAME = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_./-]*")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A built tree. `is_dirty`: the build changed tracked files. `artefacts`: hash of the files that it added.

    `toolchain`: versions of the tools that were on the PATH of the build.
    """

    key: str
    path: Path
    commit: str
    build: Build
    tree_hash: str
    artefacts: str
    is_dirty: bool
    toolchain: Mapping[str, str | None]

    def recall(self, name: str) -> Any:
        """Return what `remember` stored under the name with this snapshot, or None."""
        file = self.path / f"{name}.json"
        return json.loads(file.read_text("utf-8")) if file.exists() else None

    def remember(self, name: str, value: Any) -> None:
        """Store a JSON value with the snapshot."""
        _write(self.path / f"{name}.json", value)

    @property
    def tree(self) -> Path:
        """The built files."""
        return self.path / "tree"


class Checkout:
    """Makes and keeps the snapshots of one source in one slot."""

    def __init__(
        self, source: str, sandbox: Sandbox, control_commit: str, wanted_tree_hash: str | None, arms: int
    ) -> None:
        """`wanted_tree_hash`: what the files of the control's commit must hash to. `arms`: how many share the slot."""
        self.source = str(Path(source).absolute()) if Path(source).exists() else source
        self.sandbox = sandbox
        self.slot = sandbox.slot
        self.wanted_tree_hash = wanted_tree_hash
        self.mirror = self.slot.path / "mirrors" / canonical_digest(self.source)[:16]
        self.control_commit = control_commit
        self.kept = max(KEPT_SNAPSHOTS, 2 * arms)
        self._plain_hash: str | None = None

    def snapshot(self, suite: SuiteDefinition, commit: str, build: Build, progress: Callable[[str], None]) -> Snapshot:
        """Return the snapshot of a commit and a build, made now unless the slot has it.

        RunnerError: `no_such_commit`, `tree_differs`, `build_failed`, `no_source`.
        """
        key = canonical_digest([self.source, commit, self._plain(), suite.cwd, suite.environment, build])[:24]
        folder = self.slot.path / "snapshots" / key
        if not (folder / "meta.json").exists():
            self._make(folder, suite, commit, build, progress)
        meta = json.loads((folder / "meta.json").read_text("utf-8"))
        os.utime(folder)
        if commit == self.control_commit and self.wanted_tree_hash not in {None, meta["tree_hash"]}:
            raise self._tree_differs(meta["tree_hash"])
        return Snapshot(
            key, folder, commit, build, meta["tree_hash"], meta["artefacts"], meta["is_dirty"], meta["toolchain"]
        )

    def _tree_differs(self, found: str) -> RunnerError:
        return RunnerError(
            "tree_differs",
            f"the files of {self.source!r} hash to {found}, the plan wants {self.wanted_tree_hash}",
            "give the plan the source tree that it was made for, without changed or extra files",
        )

    def _plain(self) -> str | None:
        """Return the tree hash of a source without git, None for a git repository."""
        if self._plain_hash is None and not _is_git(self.source):
            if not Path(self.source).is_dir():
                raise RunnerError(
                    "no_source",
                    f"the source {self.source!r} is neither a git repository nor a folder",
                    "give the path or URL of a git repository, or an existing folder",
                )
            self._plain_hash = tree.tree_hash(Path(self.source))
        return self._plain_hash

    def _make(
        self, folder: Path, suite: SuiteDefinition, commit: str, build: Build, progress: Callable[[str], None]
    ) -> None:
        target = self.slot.tree
        tree.remove(folder)
        tree.remove(target)
        progress("checkout")
        tracked = self._check_out(commit, target)
        tree_hash = tree.tree_hash(target, tracked)
        progress("build")
        self._build(suite, build, target)
        meta = {
            "commit": commit,
            "tree_hash": tree_hash,
            "is_dirty": tree.tree_hash(target, tracked) != tree_hash,
            "artefacts": tree.tree_hash(target, tree.file_paths(target) - tracked),
            "toolchain": host.toolchain(compose(self.slot.private, [suite.environment, build.environment])),
        }
        folder.mkdir(parents=True)
        target.rename(folder / "tree")
        _write(folder / "meta.json", meta)
        self._forget_old(folder)

    def _check_out(self, commit: str, target: Path) -> frozenset[str]:
        """Fill `target` with the files of the commit and return their paths."""
        plain = self._plain()
        if plain is not None:
            if self.wanted_tree_hash not in {None, plain}:
                raise self._tree_differs(plain)
            # A detached plan names the commit of a tree that has no git any more; other commits are not to be had.
            if commit != plain and (self.wanted_tree_hash is None or commit != self.control_commit):
                raise RunnerError(
                    "no_such_commit",
                    f"commit {commit}: {self.source!r} is a folder without git, and its files hash to {plain}",
                    "give a git repository that has the commit, or the folder that the plan was made for",
                )
            tree.copy(Path(self.source), target, self.sandbox.life.check)
            return tree.file_paths(target)
        self._fetch(commit)
        self._git("clone", "--shared", "--no-checkout", "--quiet", str(self.mirror), str(target))
        self._git("-C", str(target), "checkout", "--quiet", "--detach", commit)
        listed = Collector()
        self._git("-C", str(target), "ls-files", "-z", observer=listed)
        names = (os.fsdecode(name) for name in bytes(listed.data).split(b"\0") if name)
        return frozenset(name for name in names if (target / name).is_symlink() or not (target / name).is_dir())

    def _fetch(self, commit: str) -> None:
        """Have the commit in the mirror, with as little traffic as possible."""
        if not _COMMIT_NAME.fullmatch(commit):
            raise RunnerError("no_such_commit", f"{commit!r} is no name of a commit", "give its 40 hexadecimal digits")
        if not (self.mirror / "HEAD").exists():
            self.mirror.parent.mkdir(parents=True, exist_ok=True)
            self._git("init", "--quiet", "--bare", str(self.mirror))
        if self._has(commit):
            return
        fetch = ("-C", str(self.mirror), "fetch", "--quiet", "--no-tags", "--no-auto-gc", "--", self.source)
        branches = self._git(*fetch, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*", may_fail=True)
        if branches.exit_code != 0:
            raise RunnerError(
                "no_source",
                f"cannot fetch from {self.source!r}: {_text(branches)}",
                "check the path or URL, the network and the credentials of git",
            )
        # A commit that no branch or tag holds (a pull request's, a force-pushed one) can be asked for by its name.
        if not self._has(commit) and (self._git(*fetch, commit, may_fail=True).exit_code != 0 or not self._has(commit)):
            raise RunnerError(
                "no_such_commit",
                f"the source {self.source!r} has no commit {commit}",
                "push it, or name a commit that the source has",
            )

    def _has(self, commit: str) -> bool:
        wanted = ("-C", str(self.mirror), "rev-parse", "--quiet", "--verify", "--end-of-options", commit + "^{commit}")
        return self._git(*wanted, may_fail=True).exit_code == 0

    def _git(self, *arguments: str, may_fail: bool = False, observer: Collector | None = None) -> Ended:
        program = shutil.which("git")
        if program is None:
            raise RunnerError(
                "missing_git",
                f"{self.source!r} is a git repository and there is no git on the PATH",
                "install git, or give an exported folder without .git",
            )
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        environment |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        command = [program, *arguments]
        limits = Limits(GIT_TIMEOUT_S)
        ended = self.sandbox.run(command, str(self.slot.path), environment, limits, observer=observer)
        if ended.exit_code != 0 and not may_fail:
            raise RunnerError("git_failed", f"git {' '.join(arguments)}: {_text(ended)}", "run the command by hand")
        return ended

    def _build(self, suite: SuiteDefinition, build: Build, target: Path) -> None:
        folder = target / suite.cwd
        if not folder.is_dir():
            raise RunnerError("build_failed", f"cwd {suite.cwd!r} is no folder of the tree", "correct cwd of the suite")
        fresh_private(self.slot.private)
        environment = compose(self.slot.private, [suite.environment, build.environment])
        ends_at = time.monotonic() + suite.build_timeout_s
        for command in build.commands:
            limits = Limits(max(ends_at - time.monotonic(), 0.0), suite.memory_limit_bytes)
            ended = self.sandbox.run(["/bin/sh", "-c", command], str(folder), environment, limits)
            if ended.ending is Ending.EXITED and ended.exit_code == 0:
                continue
            how = f"exit code {ended.exit_code}" if ended.ending is Ending.EXITED else str(ended.ending)
            raise RunnerError(
                "build_failed",
                f"the build command {command!r} ended with {how}: {_text(ended)}",
                "repair the build, or correct build, cwd and build_timeout of the suite",
            )

    def _forget_old(self, newest: Path) -> None:
        folders = sorted(newest.parent.iterdir(), key=lambda path: path.stat().st_mtime)
        for folder in folders[: -self.kept]:
            tree.remove(folder)


def fresh_private(private: Path) -> None:
    """Empty the private folders of a slot."""
    tree.remove(private)
    for folder in private_folders(private):
        folder.mkdir(parents=True, mode=0o700)


def _is_git(source: str) -> bool:
    path = Path(source)
    if not path.exists():
        return "://" in source or source.partition("/")[0].endswith(":") or "@" in source
    return (path / ".git").exists() or (path / "HEAD").is_file()


def _text(ended: Ended) -> str:
    """Return the end of what a command printed, or why there is nothing."""
    text = ended.output.decode(errors="replace").strip()[-SHOWN_OUTPUT:]
    return text or ended.detail or "no output"


def _write(path: Path, value: Any) -> None:
    """Write JSON so that a killed runner leaves the old file or the new one, never half of one."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(json.dumps(value), "ascii")
    temporary.replace(path)
