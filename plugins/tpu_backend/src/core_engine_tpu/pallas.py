"""Ragged paged attention by the Pallas kernel that torch_xla brings for TPUs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from core_engine.plugin.runtime import (
    Array,
    AttentionBackend,
    AttentionNeeds,
    DeviceIO,
    HostStep,
    KVCacheSpec,
    LayerParams,
)
from core_engine_tpu.combined_cache import pad_rows, write_slots
from core_engine_tpu.kernel_limits import head_refusal, kernel_blocks, table_refusal
from core_engine_tpu.kv_layout import KVLayout, kernel_layout
from core_engine_tpu.runtime import XlaRuntime

__all__ = ["PallasAttention"]


class PallasAttention(AttentionBackend):
    """Attends over the pages in place: nothing is gathered, and a step costs what its real tokens cost."""

    name = "xla-pallas"

    def __init__(self, runtime: XlaRuntime, *, max_num_seqs: int, max_model_len: int) -> None:
        self._runtime = runtime
        self._max_num_seqs = max_num_seqs
        self._max_model_len = max_model_len
        self._windows: set[int | None] = set()

    def supports(self, needs: AttentionNeeds) -> str | None:
        """Serve what the kernel has tiles for, without sinks, while the block tables fit scalar memory."""
        if needs.num_heads % needs.num_kv_heads:
            return f"{needs.num_heads} query heads do not divide among {needs.num_kv_heads} K/V heads"
        if needs.sinks:
            return "the kernel has no attention sinks"
        layout = kernel_layout(needs.num_kv_heads, needs.head_dim, needs.head_dim_v, needs.dtype)
        refusal = head_refusal(needs.num_heads, needs.num_kv_heads, layout) or table_refusal(
            self._max_num_seqs, self._max_model_len, needs.block_size
        )
        if refusal is None:
            self._windows.add(needs.sliding_window)
        return refusal

    def page_bytes(self, spec: KVCacheSpec, block_size: int) -> int:
        """Return the bytes of one block, padding included."""
        return _layout(spec).page_bytes(block_size)

    def allocate(self, spec: KVCacheSpec, num_blocks: int, block_size: int, io: DeviceIO) -> torch.Tensor:
        """Allocate the tensor."""
        return io.allocate(_layout(spec).shape(num_blocks, block_size), getattr(torch, spec.dtype))

    def build_metadata(self, step: HostStep, group: int, block_size: int) -> Mapping[str, Array]:
        """Describe the step to the kernel.

        With T tokens and R requests, int32 where not said otherwise: ``slots`` ``[T]``, ``is_token``
        bool ``[T]``, ``query_start`` ``[R + 1]``, ``num_seqs`` ``[1]``, and for each window of the
        model's layers ``kv_lens`` ``[R]`` and ``page_indices`` ``[R, width]``.

        The kernel would read every page that it is given and mask by distance alone. So a windowed layer
        is given the pages of its window only, as if the request began there; the pages behind may
        belong to others by now.
        """
        tables, lengths = step.block_tables[group], step.seq_lens
        metadata = {
            "slots": step.slot_mapping[group],
            "is_token": step.token_rows >= 0,
            "query_start": step.query_start,
            "num_seqs": np.array([step.num_reqs], dtype=np.int32),
        }
        counts = np.diff(step.query_start)
        for window in self._windows:
            kept, remaining = tables, lengths
            if window is not None:
                first = np.maximum(lengths - counts - window + 1, 0) // block_size
                columns = np.minimum(first[:, None] + np.arange(tables.shape[1]), tables.shape[1] - 1)
                kept = np.take_along_axis(tables, columns, axis=1)
                remaining = (lengths - first * block_size).astype(np.int32)
            metadata[_key("kv_lens", window)] = remaining
            metadata[_key("page_indices", window)] = kept
        return metadata

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
        """Write into the cache, then call the kernel; see `AttentionBackend.forward`."""
        if key is not None and value is not None:
            write_slots(cache, metadata["slots"], key, value)
        window = layer.spec.sliding_window
        layout = _layout(layer.spec)
        tables = metadata[_key("page_indices", window)]
        num_heads = layer.num_heads // layer.spec.num_kv_heads * layout.num_kv_heads
        blocks = kernel_blocks(
            layout,
            num_heads=num_heads,
            num_tokens=query.shape[0],
            block_size=cache.shape[1],
            pages_per_request=tables.shape[1],
        )
        attended = self._runtime.ragged_paged_attention(
            pad_rows(query, num_heads, layout.head_dim),
            cache,
            metadata[_key("kv_lens", window)],
            tables,
            metadata["query_start"],
            metadata["num_seqs"],
            scale=layer.scale,
            sliding_window=window,
            soft_cap=layer.soft_cap,
            pages_at_once=blocks.pages,
            queries_at_once=blocks.queries,
        )
        attended = attended[:, : layer.num_heads, : layer.spec.head_dim_v]
        # The kernel leaves the rows of padding tokens as it finds them.
        return torch.where(metadata["is_token"][:, None, None], attended, 0.0)


def _layout(spec: KVCacheSpec) -> KVLayout:
    return kernel_layout(spec.num_kv_heads, spec.head_dim, spec.head_dim_v, spec.dtype)


def _key(name: str, window: int | None) -> str:
    return name if window is None else f"{name}_within_{window}"
