"""All chance of this suite: it is decided by the run's seed."""

import hashlib
import os


def chance(name: str, per_thousand: int) -> bool:
    """True in so many of a thousand seeds."""
    digest = hashlib.sha256(f"{os.environ.get('LIKEWISE_RUN_SEED', '0')}:{name}".encode()).hexdigest()
    return int(digest[:6], 16) * 1000 // 16777216 < per_thousand
