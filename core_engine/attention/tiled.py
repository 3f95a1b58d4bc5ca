"""TiledPagedAttention: the paged cache in plain torch, with the arithmetic left open."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from core_engine._ragged import Array
from core_engine.attention.base import AttentionBackend, LayerParams
from core_engine.config import DTYPE_BYTES
from core_engine.kv_cache.specs import KVCacheSpec
from core_engine.worker.shape_policy import StepKind, StepShape

if TYPE_CHECKING:
    from core_engine.worker.device_io import DeviceIO
    from core_engine.worker.step import HostStep

__all__ = ["TiledPagedAttention"]


class TiledPagedAttention(AttentionBackend):
    """Writes keys and values, gathers each request's by its block table, and attends tile by tile.

    Serves any device that runs torch: shapes follow from `StepShape` alone, no branch depends on
    data, and every index is a tensor. One layer's cache is a pair (keys, values) of tensors
    ``[num_blocks, block_size, num_kv_heads, head_dim]`` and ``[…, head_dim_v]``; a backend with another
    layout overrides ``page_bytes``, ``allocate``, ``block_size``, ``write`` and ``gather``.

    The tokens of a step are cut into tiles that belong to one request each: single tokens in decode
    steps, up to ``tile_width`` tokens in mixed ones. A tile's tokens stand at its end, so that its
    last query is its request's latest. A tile gathers its request's keys and values once; as many
    tiles as fit ``scratch_bytes`` are computed at a time.

    ``trim_context`` narrows block tables to the longest request of the step: much less work on
    devices that take any shape, a new shape per length on those that do not.
    """

    def __init__(self, *, trim_context: bool = False, scratch_bytes: int = 64 << 20) -> None:
        self._trim_context = trim_context
        self._scratch_bytes = scratch_bytes

    @abstractmethod
    def tile_width(self, shape: StepShape) -> int:
        """Return how many queries of one request are computed together in a mixed step of ``shape``."""

    @abstractmethod
    def attend(
        self,
        layer: LayerParams,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        positions: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attend for N tiles of Q queries, each over its own S cached positions.

        ``query`` is ``[N, Q, num_heads, head_dim]``, ``keys`` ``[N, S, num_kv_heads, head_dim]``,
        ``values`` ``[N, S, num_kv_heads, head_dim_v]``; key ``s`` stands at position ``s``, and what
        stands outside the request's own tokens is arbitrary, NaN included. ``positions`` is int32
        ``[N, Q]``, −1 for queries that stand for no token; those come first in a tile. Returns
        ``[N, Q, num_heads, head_dim_v]``; rows of queries that stand for no token are arbitrary.
        """

    def page_bytes(self, spec: KVCacheSpec, block_size: int) -> int:
        """Return the bytes of one block's keys and values."""
        elements = block_size * spec.num_kv_heads * (spec.head_dim + spec.head_dim_v)
        return elements * DTYPE_BYTES[spec.dtype]

    def allocate(self, spec: KVCacheSpec, num_blocks: int, block_size: int, io: DeviceIO) -> Any:
        """Allocate the pair (keys, values)."""
        dtype: torch.dtype = getattr(torch, spec.dtype)
        pages = (num_blocks, block_size, spec.num_kv_heads)
        return io.allocate((*pages, spec.head_dim), dtype), io.allocate((*pages, spec.head_dim_v), dtype)

    def block_size(self, cache: Any) -> int:
        """Return the tokens of one block of a cache that ``allocate`` made."""
        block_size: int = cache[0].shape[1]
        return block_size

    def write(self, cache: Any, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store each token's key and value in its slot; ``slots`` is int32 ``[T]``."""
        for part, rows in zip(cache, (key, value), strict=True):
            part.flatten(0, 1)[slots] = rows.to(part.dtype)

    def gather(
        self, spec: KVCacheSpec, cache: Any, tables: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values that lie in the blocks of each row of ``tables``, int32 ``[N, width]``.

        Keys are ``[N, width * block_size, num_kv_heads, head_dim]``, values ``[…, head_dim_v]``.
        """
        keys, values = cache
        return keys[tables].flatten(1, 2), values[tables].flatten(1, 2)

    def build_metadata(self, step: HostStep, group: int, block_size: int) -> Mapping[str, Array]:
        """Cut the step's tokens into tiles.

        With T tokens, R requests, Q tokens a tile and N = min(T, T // Q + R) tiles (int32 all):
        ``slots`` ``[T]`` (where each token's key and value go), ``block_tables`` ``[R, width]``,
        ``tile_rows`` ``[N]`` (the tile's request), ``tile_tokens`` ``[N, Q]``, ``tile_positions``
        ``[N, Q]`` (−1 where the tile holds no token) and ``token_places`` ``[T]`` (each token's place
        in the flattened tiles; for padding tokens that of some token).
        """
        num_tokens, num_reqs = step.shape.num_tokens, step.shape.num_reqs
        width = 1 if step.shape.kind is StepKind.DECODE else self.tile_width(step.shape)
        num_tiles = min(num_tokens, num_tokens // width + num_reqs)

        tiles_of_row = -(-np.diff(step.query_start) // width)
        used = int(tiles_of_row.sum())
        rows = np.repeat(np.arange(num_reqs, dtype=np.int32), tiles_of_row)
        nth_of_row = np.arange(used, dtype=np.int32) - (np.cumsum(tiles_of_row) - tiles_of_row)[rows]
        first = step.query_start[rows] + nth_of_row * width
        end = np.minimum(first + width, step.query_start[rows + 1])
        tokens = end[:, None] - np.arange(width, 0, -1, dtype=np.int32)
        real = tokens >= first[:, None]

        tile_rows = np.zeros(num_tiles, dtype=np.int32)
        tile_tokens = np.zeros((num_tiles, width), dtype=np.int32)
        tile_positions = np.full((num_tiles, width), -1, dtype=np.int32)
        token_places = np.full(num_tokens, width - 1, dtype=np.int32)
        tile_rows[:used] = rows
        tile_tokens[:used][real] = tokens[real]
        tile_positions[:used][real] = step.positions[tokens[real]]
        token_places[tokens[real]] = np.flatnonzero(real)

        block_tables = step.block_tables[group]
        if self._trim_context:
            longest = max(1, -(-int(step.seq_lens.max(initial=0)) // block_size))
            block_tables = block_tables[:, :longest]
        return {
            "slots": step.slot_mapping[group],
            "block_tables": block_tables,
            "tile_rows": tile_rows,
            "tile_tokens": tile_tokens,
            "tile_positions": tile_positions,
            "token_places": token_places,
        }

    def forward(
        self,
        layer: LayerParams,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        cache: Any,
        metadata: Mapping[str, torch.Tensor],
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write, then attend tile by tile; see `AttentionBackend.forward`."""
        if key is not None and value is not None:
            self.write(cache, metadata["slots"], key, value)

        block_tables, tile_tokens = metadata["block_tables"], metadata["tile_tokens"]
        context = block_tables.shape[1] * self.block_size(cache)
        tiles_at_once = self._tiles_at_once(layer, context, tile_tokens.shape[1])
        outputs = []
        for start in range(0, len(tile_tokens), tiles_at_once):
            part = slice(start, start + tiles_at_once)
            tables, positions = block_tables[metadata["tile_rows"][part]], metadata["tile_positions"][part]
            keys, values = self.gather(layer.spec, cache, tables)
            outputs.append(self.attend(layer, query[tile_tokens[part]], keys, values, positions, sinks))
        return torch.cat(outputs).flatten(0, 1)[metadata["token_places"]].to(query.dtype)

    def _tiles_at_once(self, layer: LayerParams, context: int, tile_tokens: int) -> int:
        """Return how many tiles fit the scratch memory; scores and float32 copies count."""
        spec = layer.spec
        per_position = (
            spec.num_kv_heads * (spec.head_dim + spec.head_dim_v) + 2 * layer.num_heads * tile_tokens
        )
        return max(1, self._scratch_bytes // (4 * context * per_position))
