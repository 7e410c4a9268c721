"""What can go wrong in the cache and the scheduler."""

from __future__ import annotations


class CacheError(Exception):
    """The hybrid cache or its scheduler was found in, or asked into, a state that must not exist."""

    code = "gdn.cache"


class PoolMisuseError(CacheError):
    """A slot, page or row was used by somebody who does not own it."""

    code = "gdn.cache.pool_misuse"


class PoolLeakError(CacheError):
    """A check found that free + tree + protected + held is not the size of the pool."""

    code = "gdn.cache.leak"


class RequestTooLargeError(CacheError):
    """A request can never fit into the pools of this engine."""

    code = "gdn.cache.request_too_large"
