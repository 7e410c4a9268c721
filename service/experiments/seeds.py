"""The seed of every execution, from the experiment's own seed alone: a re-run repeats it."""

from __future__ import annotations

import hashlib


def run_seed(seed: int, block: int, arm: int) -> int:
    """Return LIKEWISE_RUN_SEED, a number below 2^63: SHA-256 of the seed, the block's index and the arm's number.

    Neither the attempt nor a database id enters, so that a block run again, or the experiment enqueued again with the
    same seed, gives every execution the seed that it had.
    """
    text = f"likewise:{seed}:{block}:{arm}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8]) >> 1
