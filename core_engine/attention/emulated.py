"""EmulatedChunkedPrefill: chunked prefill for devices that have a dense attention kernel only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from core_engine.attention.base import AttentionNeeds, LayerParams
from core_engine.attention.tiled import TiledPagedAttention

if TYPE_CHECKING:
    from core_engine.attention.dense import DenseKernel
    from core_engine.worker.shape_policy import StepShape

__all__ = ["EmulatedChunkedPrefill"]

_MIN_TILE_TOKENS, _MAX_TILE_TOKENS = 16, 128


class EmulatedChunkedPrefill(TiledPagedAttention):
    """A paged cache around a `DenseKernel`: write keys and values, gather the past, attend densely.

    The kernel never learns that a prompt came in chunks, that its beginning was cached, or where its
    pages lie: for it every tile is the end of a sequence whose keys lie in one piece. So every way
    to split a prompt gives the same rows as computing it whole.

    Cache, tiles and their cost are those of `TiledPagedAttention`.
    """

    def __init__(
        self, kernel: DenseKernel, *, trim_context: bool = False, scratch_bytes: int = 64 << 20
    ) -> None:
        super().__init__(trim_context=trim_context, scratch_bytes=scratch_bytes)
        self.name = f"chunks emulated over {kernel.name}"
        self._kernel = kernel

    def supports(self, needs: AttentionNeeds) -> str | None:
        """Serve what the dense kernel serves, if query heads divide among K/V heads."""
        if needs.num_heads % needs.num_kv_heads:
            return f"{needs.num_heads} query heads do not divide among {needs.num_kv_heads} K/V heads"
        return self._kernel.supports(needs)

    def tile_width(self, shape: StepShape) -> int:
        """Return the power of two from 16 to 128 next to an even share of the tokens.

        Wider tiles gather a request's past fewer times, but each request's last tile is computed at
        full width whatever it holds. An even share keeps both to about twice what is needed.
        """
        share = -(-shape.num_tokens // shape.num_reqs)
        return min(max(_MIN_TILE_TOKENS, 1 << (share - 1).bit_length()), _MAX_TILE_TOKENS)

    def attend(
        self,
        layer: LayerParams,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        positions: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """Hand the tiles to the dense kernel; see `TiledPagedAttention.attend`."""
        window = layer.spec.sliding_window
        lengths = positions[:, -1] + 1
        places = torch.arange(keys.shape[1], dtype=positions.dtype, device=positions.device)
        needed = places < lengths[:, None]
        if window is not None:
            first = torch.where(positions < 0, keys.shape[1], positions).amin(1)
            needed = needed & (places > first[:, None] - window)
        # Whatever stands in other slots must not reach a kernel that multiplies before it masks.
        keys = torch.where(needed[:, :, None, None], keys, 0.0)
        values = torch.where(needed[:, :, None, None], values, 0.0)
        return self._kernel.attend(
            query,
            keys,
            values,
            lengths,
            scale=layer.scale,
            sliding_window=window,
            soft_cap=layer.soft_cap,
            sinks=sinks,
        )
