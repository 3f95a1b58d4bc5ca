"""What the layers' KV caches look like, and how one pool of blocks is divided among them.

Torch-free: data types are names (`core_engine.config.DTYPE_BYTES`).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from core_engine.kv_cache.group_kind import FullAttention, GroupKind, SlidingWindow

__all__ = ["KVCacheConfig", "KVCacheGroup", "KVCacheSpec"]


@dataclass(frozen=True, kw_only=True, slots=True)
class KVCacheSpec:
    """The KV cache of one attention layer.

    ``head_dim_v`` differs from ``head_dim`` in models whose values are narrower than their keys.
    ``sliding_window`` is the number of positions that a query sees, itself included, or None for
    full attention. A layer that keeps something else (a state, say) needs a field of its own here and a
    `core_engine.kv_cache.group_kind.GroupKind` that answers for it.
    """

    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    dtype: str
    sliding_window: int | None = None
    #: Bytes of one block of this layer as the attention backend lays it out; 0 until the runner asks it.
    page_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class KVCacheGroup:
    """Layers that share one block table because they keep the same positions.

    A layer that reuses another layer's keys and values stands in ``shared`` (layer → the layer that
    owns the cache) and sees the same tensor, by the block table of the owner's group.
    """

    #: layer name → spec, in the order of the forward pass; only layers that own a cache.
    layers: dict[str, KVCacheSpec]
    shared: dict[str, str]
    #: Blocks wholly behind this many last positions are given back; None keeps all. Layers of one group
    #: may see less than it keeps: attention masks by the layer's own window.
    sliding_window: int | None = None

    def kind(self, block_size: int) -> GroupKind:
        """Return what answers for this group's blocks."""
        if self.sliding_window is None:
            return FullAttention(block_size)
        return SlidingWindow(block_size, self.sliding_window)


@dataclass(frozen=True, kw_only=True, slots=True)
class KVCacheConfig:
    """The sized pool that `ModelRunnerApi.initialize_kv_cache` allocates.

    All groups draw their blocks from one pool: the i-th layers of the groups share one cache of
    ``num_blocks`` blocks, and a block belongs to one group at a time. Block 0 is the null block:
    padding writes go there, and no request ever owns it, so ``num_blocks - 1`` blocks hold tokens.
    """

    num_blocks: int
    #: Tokens per block.
    block_size: int
    #: The longest sequence that the engine admits, in tokens.
    max_model_len: int
    groups: tuple[KVCacheGroup, ...]
    #: The most tokens of one sequence that a step computes; None for a whole sequence.
    max_step_tokens: int | None = None

    @property
    def max_blocks_per_request(self) -> int:
        """The width of a block table."""
        return -(-self.max_model_len // self.block_size)

    @property
    def kinds(self) -> tuple[GroupKind, ...]:
        """What each group keeps."""
        return tuple(group.kind(self.block_size) for group in self.groups)

    @property
    def num_tokens(self) -> int:
        """The longest sequence that the pool holds when it is alone.

        A pool of which a sequence takes a limited part, whatever its length, is said to hold as many
        tokens as its blocks have slots, and at least ``max_model_len``.
        """
        usable, size = self.num_blocks - 1, self.block_size
        lengths = range(1, max(usable, self.max_blocks_per_request) + 1)
        return size * bisect_right(lengths, usable, key=lambda length: self.peak_blocks(length * size))

    @property
    def max_concurrency(self) -> float:
        """How many requests of ``max_model_len`` tokens the pool holds at once.

        They share the tokens of a step, so only one of them is at its peak.
        """
        peak = self.peak_blocks(self.max_model_len)
        settled = self.peak_blocks(self.max_model_len, step_tokens=1)
        return 1 + (self.num_blocks - 1 - peak) / settled

    def peak_blocks(self, num_tokens: int, step_tokens: int | None = None) -> int:
        """Return the most blocks, over all groups, that a sequence of ``num_tokens`` holds at once.

        No step computes more than ``step_tokens`` of it, by default ``max_step_tokens``.
        """
        step_tokens = step_tokens or self.max_step_tokens or num_tokens
        return sum(kind.peak_blocks(num_tokens, step_tokens) for kind in self.kinds)
