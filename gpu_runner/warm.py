"""Caches as an uncounted execution of an arm left them, restored before each of its counted ones."""

from __future__ import annotations

from collections.abc import Callable

from gpu_runner import tree
from gpu_runner.slot import Slot
from gpu_runner.surroundings import CACHE_VARIABLES


class WarmCaches:
    """The warm snapshot of one arm on this host."""

    def __init__(self, slot: Slot, key: str) -> None:
        self.slot = slot
        self.folder = slot.path / "warm" / key

    def exist(self) -> bool:
        """Tell whether the warm-up was done."""
        return self.folder.exists()

    def keep(self, check: Callable[[], None]) -> None:
        """Take the caches as they stand in the private folders."""
        temporary = self.folder.with_suffix(".new")
        tree.remove(temporary)
        temporary.mkdir(parents=True)
        for name in CACHE_VARIABLES.values():
            if (self.slot.private / name).is_dir():
                tree.copy(self.slot.private / name, temporary / name, check)
        temporary.rename(self.folder)

    def restore(self, check: Callable[[], None]) -> None:
        """Put the caches into the private folders, which are fresh."""
        for name in (folder.name for folder in self.folder.iterdir()):
            tree.copy(self.folder / name, self.slot.private / name, check)

    def paths(self) -> frozenset[str]:
        """Return the paths of the cached files, as they stand below the private folder."""
        return tree.file_paths(self.folder)
