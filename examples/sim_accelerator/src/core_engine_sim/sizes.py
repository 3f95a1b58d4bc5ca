"""The sizes that steps are padded to; light, because the capabilities name them too."""

from __future__ import annotations

__all__ = ["MIN_MIXED_TOKENS", "power_of_two_buckets"]

#: Smaller mixed steps are padded to this many tokens.
MIN_MIXED_TOKENS = 16


def power_of_two_buckets(smallest: int, limit: int) -> tuple[int, ...]:
    """Return ``smallest``, its doubles below ``limit``, and ``limit`` itself, in rising order."""
    buckets = []
    size = min(smallest, limit)
    while size < limit:
        buckets.append(size)
        size *= 2
    return (*buckets, limit)
