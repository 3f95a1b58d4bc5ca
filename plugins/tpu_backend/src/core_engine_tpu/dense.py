"""Dense static attention over the combined cache, for whatever the kernel does not serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from core_engine.plugin.runtime import (
    AttentionNeeds,
    DeviceIO,
    KVCacheSpec,
    LayerParams,
    ReferencePagedAttention,
)
from core_engine_tpu.combined_cache import read_blocks, write_slots
from core_engine_tpu.kv_layout import HEADS_DIM, KVLayout, dense_layout
from core_engine_tpu.runtime import XlaRuntime

__all__ = ["DenseAttention"]

MakeLayout = Callable[[int, int, int, str], KVLayout]


class DenseAttention(ReferencePagedAttention):
    """Core's reference attention over one tensor per layer, donated to the graph that updates it.

    Several devices divide the tensor by heads.
    ``make_layout`` says how many heads the cache has, and how wide; by default those of the model.
    """

    name = "xla-dense"

    def __init__(self, runtime: XlaRuntime, make_layout: MakeLayout = dense_layout) -> None:
        super().__init__()
        self._runtime = runtime
        self._make_layout = make_layout

    def layout(self, spec: KVCacheSpec) -> KVLayout:
        """Return how a layer's cache lies."""
        return self._make_layout(spec.num_kv_heads, spec.head_dim, spec.head_dim_v, spec.dtype)

    def supports(self, needs: AttentionNeeds) -> str | None:
        """Serve what the reference serves, if the devices divide the K/V heads."""
        num_devices = self._runtime.num_devices
        if needs.num_kv_heads % num_devices:
            return f"its {needs.num_kv_heads} K/V heads cannot be divided over {num_devices} devices"
        return super().supports(needs)

    def page_bytes(self, spec: KVCacheSpec, block_size: int) -> int:
        """Return the bytes of one block on each device, padding included."""
        return self.layout(spec).page_bytes(block_size) // self._runtime.num_devices

    def allocate(self, spec: KVCacheSpec, num_blocks: int, block_size: int, io: DeviceIO) -> torch.Tensor:
        """Allocate the tensor."""
        shape = self.layout(spec).shape(num_blocks, block_size)
        return self._runtime.zeros(shape, getattr(torch, spec.dtype), divided_dim=HEADS_DIM)

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

    def forward(
        self,
        layer: LayerParams,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        cache: torch.Tensor,
        metadata: Mapping[str, torch.Tensor],
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Donate the cache of a layer that writes, then attend; see `AttentionBackend.forward`."""
        if key is not None:
            self._runtime.donate(cache)
        return super().forward(layer, query, key, value, cache, metadata, sinks)
