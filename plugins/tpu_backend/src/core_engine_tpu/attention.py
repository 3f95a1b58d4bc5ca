"""Dense static attention over the paged cache, for XLA devices without the Pallas kernel."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from core_engine.plugin.runtime import (
    AttentionNeeds,
    DeviceIO,
    KVCacheSpec,
    LayerParams,
    ReferencePagedAttention,
)
from core_engine_tpu.runtime import XlaRuntime

__all__ = ["DenseXlaAttention"]

Cache = tuple[torch.Tensor, torch.Tensor]

#: The dimension of the caches that holds heads.
_HEADS = 2


class DenseXlaAttention(ReferencePagedAttention):
    """Core's reference attention with the caches donated to the graph that updates them."""

    name = "xla-dense"

    def __init__(self, runtime: XlaRuntime) -> None:
        super().__init__()
        self._runtime = runtime

    def supports(self, needs: AttentionNeeds) -> str | None:
        """Serve what the reference serves, if the devices divide the K/V heads."""
        num_devices = self._runtime.num_devices
        if needs.num_kv_heads % num_devices:
            return f"its {needs.num_kv_heads} K/V heads cannot be divided over {num_devices} devices"
        return super().supports(needs)

    def page_bytes(self, spec: KVCacheSpec, block_size: int) -> int:
        """Return the bytes of one block's keys and values on each device."""
        return super().page_bytes(spec, block_size) // self._runtime.num_devices

    def allocate(self, spec: KVCacheSpec, num_blocks: int, block_size: int, io: DeviceIO) -> Cache:
        """Allocate the pair (keys, values), divided over the devices by heads."""
        dtype: torch.dtype = getattr(torch, spec.dtype)
        pages = (num_blocks, block_size, spec.num_kv_heads)
        keys = self._runtime.zeros((*pages, spec.head_dim), dtype, divided_dim=_HEADS)
        return keys, self._runtime.zeros((*pages, spec.head_dim_v), dtype, divided_dim=_HEADS)

    def forward(
        self,
        layer: LayerParams,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        cache: Cache,
        metadata: Mapping[str, torch.Tensor],
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Donate the caches that this layer writes, then attend; see `AttentionBackend.forward`."""
        if key is not None:
            for part in cache:
                self._runtime.donate(part)
        return super().forward(layer, query, key, value, cache, metadata, sinks)
