"""Dense static attention over the paged cache, for XLA devices without the Pallas kernel."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from core_engine.plugin.runtime import LayerParams, ReferencePagedAttention
from core_engine_tpu.runtime import XlaRuntime

__all__ = ["DenseXlaAttention"]

Cache = tuple[torch.Tensor, torch.Tensor]


class DenseXlaAttention(ReferencePagedAttention):
    """Core's reference attention with the caches donated to the graph that updates them."""

    name = "xla-dense"

    def __init__(self, runtime: XlaRuntime) -> None:
        super().__init__()
        self._runtime = runtime

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
