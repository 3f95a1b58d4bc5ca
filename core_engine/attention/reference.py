"""Paged attention in plain torch: the definition that every other attention backend is held to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from core_engine.attention.base import AttentionNeeds, LayerParams
from core_engine.attention.tiled import TiledPagedAttention

if TYPE_CHECKING:
    from core_engine.worker.shape_policy import StepShape

__all__ = ["ReferencePagedAttention"]

#: Queries of one request that are computed together in a mixed step.
_TILE_TOKENS = 16
#: Stands for a score that nothing may attend to; finite, so that rows without any key stay finite.
_MASKED = -1e30


class ReferencePagedAttention(TiledPagedAttention):
    """Attends in float32 over what each request's block table names; see `TiledPagedAttention`."""

    name = "reference"

    def supports(self, needs: AttentionNeeds) -> str | None:
        """Serve every kind of layer whose query heads divide among its K/V heads."""
        if needs.num_heads % needs.num_kv_heads:
            return f"{needs.num_heads} query heads do not divide among {needs.num_kv_heads} K/V heads"
        return None

    def tile_width(self, shape: StepShape) -> int:
        """Return 16 for every shape."""
        return _TILE_TOKENS

    def attend(
        self,
        layer: LayerParams,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        positions: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return float32, zero where a query sees no key; see `TiledPagedAttention.attend`."""
        num_kv_heads, window = layer.spec.num_kv_heads, layer.spec.sliding_window
        grouped = query.float().view(*query.shape[:2], num_kv_heads, -1, query.shape[3])
        keys, values = keys.float(), values.float()

        places = torch.arange(keys.shape[1], dtype=positions.dtype, device=positions.device)
        distance = positions[:, :, None] - places
        visible = distance >= 0
        if window is not None:
            visible = visible & (distance < window)

        scores = torch.einsum("nqhgd,nshd->nhgqs", grouped, keys) * layer.scale
        if layer.soft_cap is not None:
            scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
        scores = torch.where(visible[:, None, None], scores, _MASKED)
        highest = scores.amax(-1, keepdim=True)
        if sinks is not None:
            sink = sinks.float().view(1, num_kv_heads, -1, 1, 1)
            highest = torch.maximum(highest, sink)
        weights = torch.exp(scores - highest)
        total = weights.sum(-1, keepdim=True)
        if sinks is not None:
            total = total + torch.exp(sink - highest)

        # A weight of zero does not erase what an unwritten slot holds: 0 × NaN is NaN.
        values = torch.where(visible.any(1)[:, :, None, None], values, 0.0)
        attended = torch.einsum("nhgqs,nshd->nqhgd", weights / total, values)
        return attended.flatten(2, 3)
