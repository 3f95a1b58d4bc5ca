"""From the layers' cache specs and the bytes at hand to a sized pool."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from core_engine.errors import ContractError, DoesNotFit
from core_engine.kv_cache.specs import KVCacheConfig, KVCacheGroup, KVCacheSpec

__all__ = ["block_bytes", "group_layers", "plan_kv_cache"]

_log = logging.getLogger(__name__)


def group_layers(specs: Mapping[str, KVCacheSpec | str]) -> tuple[KVCacheGroup, ...]:
    """Divide layers (name → spec, or the name of the layer whose cache it reuses) into groups.

    One group for now: every layer keeps all positions, and attention masks what lies behind a
    window. Raises `ContractError` when a layer reuses the cache of one that owns none.
    """
    layers = {name: spec for name, spec in specs.items() if isinstance(spec, KVCacheSpec)}
    shared = {name: owner for name, owner in specs.items() if isinstance(owner, str)}
    for name, owner in shared.items():
        if owner not in layers:
            raise ContractError(f"layer {name!r} reuses the KV cache of {owner!r}, which owns none")
    if not layers:
        raise ContractError("the model runner reported no layer that owns a KV cache")
    return (KVCacheGroup(layers=layers, shared=shared),)


def block_bytes(groups: tuple[KVCacheGroup, ...]) -> int:
    """Return the bytes of one block over all layers that own a cache.

    Raises `ContractError` for a layer whose ``page_bytes`` the runner left at 0.
    """
    total = 0
    for group in groups:
        for name, spec in group.layers.items():
            if spec.page_bytes <= 0:
                raise ContractError(
                    f"layer {name!r} has page_bytes {spec.page_bytes}; the runner must set it"
                )
            total += spec.page_bytes
    return total


def plan_kv_cache(
    specs: Mapping[str, KVCacheSpec | str],
    *,
    available_bytes: int,
    block_size: int,
    max_model_len: int | None,
    longest_model_len: int | None,
) -> KVCacheConfig:
    """Size the pool and settle the longest sequence.

    ``max_model_len`` is the user's wish, or None for the model's own ``longest_model_len`` (None where
    the model knows no limit), cut to what fits and logged. The pool takes all of ``available_bytes``;
    one block of it is the null block.

    Raises `DoesNotFit`, with the missing bytes and the length that would fit, when a sequence of the
    wished length is too long for the pool, or when not even one block fits.
    """
    groups = group_layers(specs)
    bytes_per_block = block_bytes(groups)
    num_blocks = available_bytes // bytes_per_block
    fitting_len = (num_blocks - 1) * block_size
    # The shortest sequence of use is one prompt token and one more.
    wished_len = max_model_len or min(longest_model_len or block_size, block_size)
    if wished_len > fitting_len:
        raise DoesNotFit(_shortage(wished_len, fitting_len, available_bytes, bytes_per_block, block_size))
    if max_model_len is None:
        max_model_len = min(longest_model_len or fitting_len, fitting_len)
        if longest_model_len is not None and max_model_len < longest_model_len:
            _log.warning(
                "max_model_len %d: the model's %d tokens need %s of KV cache, and %s are available",
                max_model_len,
                longest_model_len,
                _bytes(_needed(longest_model_len, bytes_per_block, block_size)),
                _bytes(available_bytes),
            )
        else:
            _log.info(
                "max_model_len %d: %s", max_model_len, "the model's" if longest_model_len else "what fits"
            )
    return KVCacheConfig(
        num_blocks=num_blocks, block_size=block_size, max_model_len=max_model_len, groups=groups
    )


def _needed(num_tokens: int, bytes_per_block: int, block_size: int) -> int:
    return (-(-num_tokens // block_size) + 1) * bytes_per_block


def _shortage(
    wished_len: int, fitting_len: int, available_bytes: int, bytes_per_block: int, block_size: int
) -> str:
    needed = _needed(wished_len, bytes_per_block, block_size)
    text = (
        f"max_model_len {wished_len} needs {_bytes(needed)} of KV cache "
        f"({bytes_per_block // block_size} bytes a token), but {_bytes(available_bytes)} are available: "
        f"{needed - available_bytes} bytes too few. "
    )
    if fitting_len >= 2:
        return text + f"The longest that fits is max_model_len {fitting_len}; set it, or raise kv_cache_bytes"
    return text + "No max_model_len fits: raise kv_cache_bytes or free memory on the device"


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} bytes"
