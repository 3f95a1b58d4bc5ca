"""Dense static attention over the combined cache, for whatever the kernel does not serve."""

from __future__ import annotations

from collections.abc import Callable

import torch

from core_engine.plugin.runtime import (
    DeviceIO,
    KVCacheSpec,
    ReferencePagedAttention,
)
from core_engine_tpu.combined_cache import read_blocks, write_slots
from core_engine_tpu.kv_layout import KVLayout, dense_layout

__all__ = ["DenseAttention"]

MakeLayout = Callable[[int, int, int, str], KVLayout]


class DenseAttention(ReferencePagedAttention):
    """Core's reference attention over one tensor per layer.

    ``make_layout`` says how many heads the cache has, and how wide; by default those of the model.
    """

    name = "xla-dense"

    def __init__(self, make_layout: MakeLayout = dense_layout) -> None:
        super().__init__()
        self._make_layout = make_layout

    def layout(self, spec: KVCacheSpec) -> KVLayout:
        """Return how a layer's cache lies."""
        return self._make_layout(spec.num_kv_heads, spec.head_dim, spec.head_dim_v, spec.dtype)

    def page_bytes(self, spec: KVCacheSpec, block_size: int) -> int:
        """Return the bytes of one block, padding included."""
        return self.layout(spec).page_bytes(block_size)

    def allocate(self, spec: KVCacheSpec, num_blocks: int, block_size: int, io: DeviceIO) -> torch.Tensor:
        """Allocate the tensor."""
        return io.allocate(self.layout(spec).shape(num_blocks, block_size), getattr(torch, spec.dtype))

    def block_size(self, cache: torch.Tensor) -> int:
        """Return the tokens of one block."""
        return cache.shape[1]

    def write(self, cache: torch.Tensor, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """See `TiledPagedAttention.write`."""
        write_slots(cache, slots, key, value)

    def gather(
        self, spec: KVCacheSpec, cache: torch.Tensor, tables: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `TiledPagedAttention.gather`."""
        return read_blocks(cache, spec, tables)
