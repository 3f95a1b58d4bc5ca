"""The sizes to which steps are padded: each is compiled once at warm-up, none later. Pure, torch-free."""

from __future__ import annotations

from itertools import pairwise

from core_engine.plugin import MIN_MIXED_TOKENS, ConfigError, power_of_two_buckets

__all__ = ["DEFAULT_MAX_TOKENS", "request_buckets", "token_buckets"]

#: The largest step where no buckets are listed: each doubling is one more graph of the whole model.
DEFAULT_MAX_TOKENS = 512


def token_buckets(listed: str | None) -> tuple[int, ...]:
    """Return the numbers of tokens that mixed steps may have, in rising order.

    They are those of the option ``token_buckets``, or the powers of two from 16 to 512.
    """
    if listed is None:
        return power_of_two_buckets(MIN_MIXED_TOKENS, DEFAULT_MAX_TOKENS)
    return _read("token_buckets", listed)


def request_buckets(listed: str | None) -> tuple[int, ...] | None:
    """Return the numbers of requests that decode steps may have; None for the powers of two."""
    return None if listed is None else _read("request_buckets", listed)


def _read(option: str, listed: str) -> tuple[int, ...]:
    """Return ``"16,64,256"`` as numbers. Raises `ConfigError` unless they are positive and rise."""
    parts = [part.strip() for part in listed.split(",")]
    sizes = tuple(int(part) for part in parts if part.isdecimal())
    rises = all(low < high for low, high in pairwise(sizes))
    if len(sizes) != len(parts) or not rises or sizes[0] < 1:
        raise ConfigError(
            f"{option} must be numbers of at least 1 in rising order, such as 16,64,256; got {listed!r}"
        )
    return sizes
