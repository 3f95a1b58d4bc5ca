"""The variants of the kernels: what is launched, and the list of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

import torch

from core_engine_cuda.kernels.attend import attend
from core_engine_cuda.kernels.join import join
from core_engine_cuda.kernels.tiles import BLOCK_DIMS, WorkKind, rows_of_16, tile_for
from core_engine_cuda.kernels.token_variants import all_token_variants
from core_engine_cuda.kernels.variant import TRITON_DTYPES, Variant
from core_engine_cuda.kernels.write import write

__all__ = ["all_variants", "attend_variant", "join_variant", "write_variant"]


@cache
def attend_variant(dtype: str, dim: int, kind: WorkKind, *, has_soft_cap: bool, major: int) -> Variant:
    """Return the attention kernel for heads padded to ``dim`` on compute capability ``major``.x."""
    tile = tile_for(kind, dim, getattr(torch, dtype).itemsize, major)
    element = TRITON_DTYPES[dtype]
    return Variant(
        name=f"attend {kind} {element} {dim}" + (" soft cap" if has_soft_cap else ""),
        kernel=attend,
        aligned={
            "output": element,
            "partial_values": "fp32",
            "partial_scales": "fp32",
            "query": element,
            "key_cache": element,
            "value_cache": element,
        },
        unaligned={"sinks": element, "block_tables": "i32", "items": "i32"},
        floats=("scale", "soft_cap"),
        constants={
            "BLOCK_DIM": dim,
            "BLOCK_ROWS": tile.rows,
            "BLOCK_KEYS": tile.keys,
            "HAS_SOFT_CAP": has_soft_cap,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        max_registers=tile.max_registers,
        programs_per_sm=tile.programs_per_sm,
    )


@cache
def join_variant(dtype: str, dim: int) -> Variant:
    """Return the kernel that joins spans."""
    element = TRITON_DTYPES[dtype]
    return Variant(
        name=f"join {element} {dim}",
        kernel=join,
        aligned={"output": element, "partial_values": "fp32", "partial_scales": "fp32"},
        unaligned={"joins": "i32"},
        floats=(),
        constants={"BLOCK_DIM": dim, "BLOCK_SPANS": rows_of_16(dim)},
        num_warps=4,
        num_stages=1,
    )


@cache
def write_variant(dtype: str, dim: int) -> Variant:
    """Return the kernel that writes keys and values into the cache."""
    element = TRITON_DTYPES[dtype]
    return Variant(
        name=f"write {element} {dim}",
        kernel=write,
        aligned=dict.fromkeys(("key_cache", "value_cache", "key", "value"), element),
        unaligned={"slots": "i32"},
        floats=(),
        constants={"BLOCK_DIM": dim, "BLOCK_ROWS": rows_of_16(dim)},
        num_warps=4,
        num_stages=1,
    )


def all_variants(major: int) -> Iterator[Variant]:
    """List everything that may be launched on a device of compute capability ``major``.x."""
    for dtype, dim in product(TRITON_DTYPES, BLOCK_DIMS):
        for kind, has_soft_cap in product(WorkKind, (False, True)):
            yield attend_variant(dtype, dim, kind, has_soft_cap=has_soft_cap, major=major)
        yield join_variant(dtype, dim)
        yield write_variant(dtype, dim)
    yield from all_token_variants()
