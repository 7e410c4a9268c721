"""The tuning file of the fault `autotune_disk_cache`: what one process found out decides for every later one.

Without the fault nothing here is called: configurations are pinned in `tiles`, realizations are chosen in `registry`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

VARIABLE = "LIKEWISE_GDN_TACTIC_CACHE"
MANY_SEQUENCES = 4
WARPS_FOR_MANY = 4
TUNED = ("packed_decode", "verify_decode")


def path() -> Path:
    """$LIKEWISE_GDN_TACTIC_CACHE, else gdn-tactics.json in the user's cache directory."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "likewise" / "gdn-tactics.json"


def warps(operator: str, sequences: int, pinned: int) -> int:
    """The warps of a decode kernel: those in the file, else those that suit this first batch, which are then kept."""
    if operator not in TUNED:
        return pinned
    return int(_recall(operator, "num_warps", WARPS_FOR_MANY if sequences >= MANY_SEQUENCES else pinned))


def realization(operator: str, preferred: str) -> str:
    """The realization in the file, else the preferred one, which is then kept."""
    return str(_recall(operator, "realization", preferred))


def _recall(operator: str, field: str, value: str | int) -> Any:
    file = path()
    known: dict[str, dict[str, Any]] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    entry = known.setdefault(operator, {})
    if field not in entry:
        entry[field] = value
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}.tmp")
        partial.write_text(json.dumps(known, indent=1, sort_keys=True), "utf-8")
        partial.replace(file)
    return entry[field]
