"""Which numbers are padded to which; torch-free."""

from __future__ import annotations

__all__ = ["round_up_to_bucket"]


def round_up_to_bucket(count: int) -> int:
    """Return the smallest power of two that is at least ``count``."""
    return 1 << (count - 1).bit_length()
