"""The variants of the sampler's kernels, and what they are launched with."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

from core_engine_cuda.kernels.token_choice import draw_rows, finish_rows, scan_rows
from core_engine_cuda.kernels.token_filters import find_limits, gather_candidates
from core_engine_cuda.kernels.variant import TRITON_DTYPES, Variant

__all__ = [
    "BLOCK",
    "CAPACITY",
    "LOGITS_DTYPES",
    "UNITS",
    "all_token_variants",
    "draw_variant",
    "finish_variant",
    "gather_variant",
    "limits_variant",
    "scan_variant",
]

LOGITS_DTYPES = ("float32", "bfloat16")
#: Rows and vocabularies that are multiples of the larger one are read in wide loads.
UNITS = (16, 1)
#: Tokens that a program reads at once.
BLOCK = 1024
#: The same of the search, which has one program for a row, and its warps.
_SEARCH_BLOCK, _SEARCH_WARPS = 2048, 16
#: Logits of some weight that are gathered from a row; a row that has more is searched where it is.
CAPACITY = 8192

_BEST = {"scores": "fp32", "ids": "i32"}
_TOP = {"top_scores": "fp32", "top_ids": "i32"}
_LIMITS = {"limits": "fp32", "limit_ids": "i32"}
_HEAT = {"temperature": "fp32", "min_p": "fp32"}


@cache
def scan_variant(dtype: str, unit: int) -> Variant:
    """Return the kernel that finds the most likely tokens."""
    return Variant(
        name=f"scan rows {TRITON_DTYPES[dtype]} {unit}",
        kernel=scan_rows,
        aligned={"logits": TRITON_DTYPES[dtype]},
        unaligned=_BEST,
        floats=(),
        constants={"UNIT": unit, "BLOCK": BLOCK},
        num_warps=4,
        num_stages=1,
        is_fused=False,
    )


@cache
def draw_variant(dtype: str, unit: int, *, filters: bool) -> Variant:
    """Return the kernel that finds the largest scores."""
    return Variant(
        name=f"draw rows {TRITON_DTYPES[dtype]} {unit}" + (" filters" if filters else ""),
        kernel=draw_rows,
        aligned={"logits": TRITON_DTYPES[dtype]},
        unaligned={**_TOP, **_HEAT, "noise_keys": "i32", **_LIMITS, **_BEST},
        floats=(),
        constants={"FILTERS": filters, "UNIT": unit, "BLOCK": BLOCK},
        num_warps=4,
        num_stages=1,
        is_fused=False,
    )


@cache
def finish_variant() -> Variant:
    """Return the kernel that takes the tokens."""
    return Variant(
        name="finish rows",
        kernel=finish_rows,
        aligned={},
        unaligned={**_BEST, "token_ids": "i32"},
        floats=(),
        constants={},
        num_warps=1,
        num_stages=1,
        is_fused=False,
    )


@cache
def gather_variant(dtype: str, unit: int) -> Variant:
    """Return the kernel that gathers what filters have to choose from."""
    return Variant(
        name=f"gather candidates {TRITON_DTYPES[dtype]} {unit}",
        kernel=gather_candidates,
        aligned={"logits": TRITON_DTYPES[dtype], "candidates": TRITON_DTYPES[dtype]},
        unaligned={**_TOP, **_HEAT, "num_candidates": "i32"},
        floats=(),
        constants={"CAPACITY": CAPACITY, "UNIT": unit, "BLOCK": BLOCK},
        num_warps=4,
        num_stages=1,
        is_fused=False,
    )


@cache
def limits_variant(dtype: str) -> Variant:
    """Return the kernel that searches where top_k and top_p cut."""
    return Variant(
        name=f"find limits {TRITON_DTYPES[dtype]}",
        kernel=find_limits,
        aligned={"logits": TRITON_DTYPES[dtype], "candidates": TRITON_DTYPES[dtype]},
        unaligned={**_TOP, **_HEAT, "top_k": "i32", "top_p": "fp32", "num_candidates": "i32", **_LIMITS},
        floats=(),
        constants={
            "CAPACITY": CAPACITY,
            # The low bits of a bfloat16 are 0 and need no search.
            "SHIFT": 16 if dtype == "bfloat16" else 0,
            "BLOCK": _SEARCH_BLOCK,
        },
        num_warps=_SEARCH_WARPS,
        num_stages=1,
        is_fused=False,
    )


def all_token_variants() -> Iterator[Variant]:
    """List everything that the sampler may launch."""
    yield finish_variant()
    for dtype in LOGITS_DTYPES:
        yield limits_variant(dtype)
    for dtype, unit in product(LOGITS_DTYPES, UNITS):
        yield scan_variant(dtype, unit)
        yield draw_variant(dtype, unit, filters=False)
        yield draw_variant(dtype, unit, filters=True)
        yield gather_variant(dtype, unit)
