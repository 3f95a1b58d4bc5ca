"""Writing to and reading from caches that hold keys and values in one tensor."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from core_engine.plugin.runtime import KVCacheSpec

__all__ = ["pad_rows", "read_blocks", "write_slots"]


def pad_rows(rows: torch.Tensor, num_heads: int, head_dim: int) -> torch.Tensor:
    """Fill ``[T, heads, dim]`` up with zeros to ``[T, num_heads, head_dim]``."""
    missing = (0, head_dim - rows.shape[2], 0, num_heads - rows.shape[1])
    return F.pad(rows, missing) if any(missing) else rows


def write_slots(cache: torch.Tensor, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Store each token's key and value in its slot; several tokens may share slot 0 only.

    XLA scatters rows into the memory of a donated cache. Whether a kernel of its own would be faster on a
    TPU is unmeasured.
    """
    num_heads, head_dim = cache.shape[2] // 2, cache.shape[3]
    heads = [pad_rows(rows, num_heads, head_dim) for rows in (key, value)]
    rows = torch.stack(heads, dim=2).flatten(1, 2)
    if rows.shape[0] == 1:
        # XLA makes a single row an update of a slice, merges that into the read that follows, and on the host
        # copies the whole cache then (measured). A second row, into the null block, keeps it a scatter.
        slots, rows = torch.cat([slots, torch.zeros_like(slots)]), torch.cat([rows, rows])
    cache.flatten(0, 1)[slots] = rows.to(cache.dtype)


def read_blocks(
    cache: torch.Tensor, spec: KVCacheSpec, tables: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values of the blocks in ``tables`` without padding, as `TiledPagedAttention.gather`."""
    pages = cache[tables].flatten(1, 2)
    pages = pages.view(*pages.shape[:2], -1, 2, pages.shape[3])[:, :, : spec.num_kv_heads]
    return pages[:, :, :, 0, : spec.head_dim], pages[:, :, :, 1, : spec.head_dim_v]
