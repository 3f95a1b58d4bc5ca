"""From the layers' cache specs and the bytes at hand to a sized pool."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from core_engine.errors import DoesNotFit
from core_engine.kv_cache.grouping import block_bytes, group_layers
from core_engine.kv_cache.specs import KVCacheConfig, KVCacheSpec

__all__ = ["plan_kv_cache"]

_log = logging.getLogger(__name__)


def plan_kv_cache(
    specs: Mapping[str, KVCacheSpec | str],
    *,
    available_bytes: int,
    block_size: int,
    max_model_len: int | None,
    longest_model_len: int | None,
    max_step_tokens: int | None = None,
) -> KVCacheConfig:
    """Divide the layers into groups, size the pool and settle the longest sequence.

    ``max_model_len`` is the user's wish, or None for the model's own ``longest_model_len`` (None where
    the model knows no limit), cut to what fits and logged. No step computes more than
    ``max_step_tokens`` of one sequence. The pool takes all of ``available_bytes``; one block of it is
    the null block.

    Raises `DoesNotFit`, with the missing bytes and the length that would fit, when a sequence of the
    wished length is too long for the pool, or when not even one block fits.
    """
    longest = max_model_len or longest_model_len
    groups = group_layers(specs, block_size=block_size, longest=longest)
    bytes_per_block = block_bytes(groups)
    pool = KVCacheConfig(
        num_blocks=available_bytes // bytes_per_block,
        block_size=block_size,
        # The shortest sequence of use is one prompt token and one more.
        max_model_len=max_model_len or min(longest_model_len or block_size, block_size),
        groups=groups,
        max_step_tokens=max_step_tokens,
    )
    if pool.max_model_len > pool.num_tokens:
        raise DoesNotFit(_shortage(pool, available_bytes, bytes_per_block))
    if max_model_len is not None:
        return pool
    if longest_model_len is None:
        _log.info("max_model_len %d: what fits", pool.num_tokens)
        return replace(pool, max_model_len=pool.num_tokens)
    wished = replace(pool, max_model_len=longest_model_len)
    if longest_model_len <= wished.num_tokens:
        _log.info("max_model_len %d: the model's", longest_model_len)
        return wished
    _log.warning(
        "max_model_len %d: the model's %d tokens need %s of KV cache, and %s are available",
        wished.num_tokens,
        longest_model_len,
        _bytes(_needed_blocks(wished) * bytes_per_block),
        _bytes(available_bytes),
    )
    return replace(pool, max_model_len=wished.num_tokens)


def _needed_blocks(pool: KVCacheConfig) -> int:
    """Return how many blocks a sequence of ``max_model_len`` needs, the null block included."""
    return pool.peak_blocks(pool.max_model_len) + 1


def _shortage(pool: KVCacheConfig, available_bytes: int, bytes_per_block: int) -> str:
    needed = _needed_blocks(pool) * bytes_per_block
    text = (
        f"max_model_len {pool.max_model_len} needs {_bytes(needed)} of KV cache "
        f"({_needed_blocks(pool)} blocks of {_bytes(bytes_per_block)}, one of them for padding), but "
        f"{_bytes(available_bytes)} are available: {needed - available_bytes} bytes too few. "
    )
    if pool.num_tokens >= 2:
        return text + (
            f"The longest that fits is max_model_len {pool.num_tokens}; set it, or raise kv_cache_bytes"
        )
    return text + "No max_model_len fits: raise kv_cache_bytes or free memory on the device"


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} bytes"
