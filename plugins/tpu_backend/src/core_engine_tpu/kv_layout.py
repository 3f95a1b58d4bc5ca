"""How keys and values lie in one tensor per layer, padded as the attention kernel wants it. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from core_engine.plugin import DTYPE_BYTES

__all__ = ["HEADS_DIM", "LANES", "SUBLANES", "KVLayout", "dense_layout", "fills_tiles", "kernel_layout"]

#: The dimension of the cache that holds heads; several devices divide it.
HEADS_DIM = 2
#: Elements in the last dimension of a TPU's tiles.
LANES = 128
#: Rows of 32 bits in a TPU's tiles.
SUBLANES = 8


@dataclass(frozen=True, slots=True)
class KVLayout:
    """One layer's cache: ``[num_blocks, block_size, 2 * num_kv_heads, head_dim]``, heads k0 v0 k1 v1 ….

    Keys and values of a head lie side by side, and so do whole heads: what one device holds when the heads
    are divided among several is a cache of the same kind. Both numbers include padding.
    """

    num_kv_heads: int
    head_dim: int
    dtype: str

    def shape(self, num_blocks: int, block_size: int) -> tuple[int, int, int, int]:
        """Return the shape of the tensor."""
        return num_blocks, block_size, 2 * self.num_kv_heads, self.head_dim

    def page_bytes(self, block_size: int) -> int:
        """Return the bytes of one block."""
        return 2 * block_size * self.num_kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]


def dense_layout(num_kv_heads: int, head_dim: int, head_dim_v: int, dtype: str) -> KVLayout:
    """Return the layout without padding, where keys and values are equally wide; else the wider counts."""
    return KVLayout(num_kv_heads, max(head_dim, head_dim_v), dtype)


def kernel_layout(num_kv_heads: int, head_dim: int, head_dim_v: int, dtype: str) -> KVLayout:
    """Return the smallest layout that the ragged paged attention kernel reads.

    Heads are filled up to whole lanes. The interleaved heads, packed into words of 32 bits, must be 1, 2
    or 4 rows, or whole tiles of 8.
    """
    width = -(-max(head_dim, head_dim_v) // LANES) * LANES
    rows_of_head = 2 * DTYPE_BYTES[dtype] / 4
    padded = num_kv_heads
    while not fills_tiles(padded * rows_of_head):
        padded += 1
    return KVLayout(padded, width, dtype)


def fills_tiles(rows: float) -> bool:
    """Tell whether so many rows of 32 bits lie in a TPU's memory without gaps, in whole or in small tiles."""
    return rows in (1, 2, 4) or rows % SUBLANES == 0
