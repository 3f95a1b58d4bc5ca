"""Divides a model's layers into KV-cache groups that share one pool of blocks.

Layers of one kind (full attention, or a sliding window of some size) keep the same positions. Each kind
is cut into groups of at most L layers, and the i-th layers of all groups share one cache: a block costs
L pages, whichever group takes it, so one pool serves all kinds. What L is best follows from what one long
sequence takes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from core_engine.errors import ContractError
from core_engine.kv_cache.specs import KVCacheConfig, KVCacheGroup, KVCacheSpec

__all__ = ["block_bytes", "group_layers"]

#: Each group costs the host a block table and metadata per step.
_MAX_GROUPS = 8
#: By how much fewer groups, or keeping all positions in one, may raise the pages of one long sequence.
_TOLERANCE = 1.1

Layers = dict[str, KVCacheSpec]


def group_layers(
    specs: Mapping[str, KVCacheSpec | str], *, block_size: int, longest: int | None
) -> tuple[KVCacheGroup, ...]:
    """Divide layers (name → spec, or the name of the layer whose cache it reuses) into groups.

    ``longest`` is the longest sequence of interest in tokens, None for no limit. Groups that keep all
    positions come first. Of the divisions that take about the fewest pages the one of the fewest groups
    is chosen. There is one group that keeps all positions when windows save little of a sequence of
    that length, or when layers of several kinds differ in more than their window.

    Raises `ContractError` when a layer reuses the cache of one that owns none.
    """
    layers = {name: spec for name, spec in specs.items() if isinstance(spec, KVCacheSpec)}
    shared = {name: owner for name, owner in specs.items() if isinstance(owner, str)}
    for name, owner in shared.items():
        if owner not in layers:
            raise ContractError(f"layer {name!r} reuses the KV cache of {owner!r}, which owns none")
    if not layers:
        raise ContractError("the model runner reported no layer that owns a KV cache")
    whole = (KVCacheGroup(layers=layers, shared=shared),)
    kinds: dict[int | None, Layers] = defaultdict(dict)
    for name, spec in layers.items():
        kinds[spec.sliding_window][name] = spec
    if len(kinds) > 1 and len({replace(spec, sliding_window=None) for spec in layers.values()}) > 1:
        return whole

    def pages(groups: tuple[KVCacheGroup, ...]) -> int:
        """Return the pages that a decoding sequence of the longest length takes."""
        num_tokens = longest or 1 << 30
        pool = KVCacheConfig(num_blocks=1, block_size=block_size, max_model_len=num_tokens, groups=groups)
        return pool.peak_blocks(num_tokens, step_tokens=1) * max(map(_num_layers, groups))

    divided = [_divide(kinds, shared, size) for size in range(1, 1 + max(map(len, kinds.values())))]
    possible = [whole, *sorted((groups for groups in divided if len(groups) <= _MAX_GROUPS), key=pages)]
    most = _TOLERANCE * min(map(pages, possible))
    return min((groups for groups in possible if pages(groups) <= most), key=len)


def block_bytes(groups: tuple[KVCacheGroup, ...]) -> int:
    """Return the bytes of one block: a page of each cache, of which the largest group uses all.

    Raises `ContractError` for a layer whose ``page_bytes`` the runner left at 0.
    """
    for group in groups:
        for name, spec in group.layers.items():
            if spec.page_bytes <= 0:
                raise ContractError(
                    f"layer {name!r} has page_bytes {spec.page_bytes}; the runner must set it"
                )
    return sum(spec.page_bytes for spec in max(groups, key=_num_layers).layers.values())


def _divide(
    kinds: Mapping[int | None, Layers], shared: Mapping[str, str], size: int
) -> tuple[KVCacheGroup, ...]:
    """Cut each kind into groups of at most ``size`` layers."""
    groups = []
    for window, layers in sorted(kinds.items(), key=lambda kind: kind[0] is not None):
        names = list(layers)
        for start in range(0, len(names), size):
            part = {name: layers[name] for name in names[start : start + size]}
            reusing = {name: owner for name, owner in shared.items() if owner in part}
            groups.append(KVCacheGroup(layers=part, shared=reusing, sliding_window=window))
    return tuple(groups)


def _num_layers(group: KVCacheGroup) -> int:
    return len(group.layers)
