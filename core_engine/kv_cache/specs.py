"""What the layers' KV caches look like, and how one pool of blocks is divided among them.

Torch-free: data types are names (`core_engine.config.DTYPE_BYTES`).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KVCacheConfig", "KVCacheGroup", "KVCacheSpec"]


@dataclass(frozen=True, kw_only=True, slots=True)
class KVCacheSpec:
    """The KV cache of one attention layer.

    ``head_dim_v`` differs from ``head_dim`` in models whose values are narrower than their keys.
    ``sliding_window`` is the number of positions that a query sees, itself included, or None for
    full attention.
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
    owns the cache) and sees the same tensor.
    """

    #: layer name → spec, in the order of the forward pass; only layers that own a cache.
    layers: dict[str, KVCacheSpec]
    shared: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class KVCacheConfig:
    """The sized pool that `ModelRunnerApi.initialize_kv_cache` allocates.

    Block 0 is the null block: padding writes go there, and no request ever owns it, so
    ``num_blocks - 1`` blocks hold tokens.
    """

    num_blocks: int
    #: Tokens per block.
    block_size: int
    #: The longest sequence that the engine admits, in tokens.
    max_model_len: int
    groups: tuple[KVCacheGroup, ...]

    @property
    def max_blocks_per_request(self) -> int:
        """The width of a block table."""
        return -(-self.max_model_len // self.block_size)

    @property
    def num_tokens(self) -> int:
        """How many tokens the pool holds, the null block left out."""
        return (self.num_blocks - 1) * self.block_size
