"""Tile sizes of the kernels: how much one program holds at once. Pure: neither torch nor triton.

The sizes follow from what the sources and the compiler say; they were not yet timed on a GPU. Nothing is
tuned at run time: captured graphs need the same kernel each time, and a start should not wait for
measurements.

* FlashAttention-2 (https://arxiv.org/abs/2307.08691, section 3.3) keeps 64 or 128 queries and 64 or 128 keys,
  and says why not more: registers spill, or shared memory does not hold them. Here a larger head size takes
  fewer keys, so that a step of a decode loop brings 16 KiB of keys and as many of values, whatever the size.
* A decode step is bound by memory. 16 rows are the least that tensor cores multiply; the rest of the room
  goes to loads in flight. Five stages are two tiles of keys and values underway behind the block table's
  entries, which are loaded one stage before: about 72 KiB, so that two programs share the 163 KiB of an
  sm_80. Those that have less (8.6, 8.9, 12.0) hold one at a time.
* What the compiler makes of them (`ahead_of_time`) decides the rest: 128 rows over 8 warps and head size
  128 take 32 keys where the matrix product's operands lie in registers, and 64 where they lie in shared
  memory or tensor memory (compute capability 9 and 10).
* In float32 nothing uses tensor cores; small tiles serve both kinds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "BLOCK_DIMS",
    "REGISTERS",
    "SHARED_MEMORY",
    "SMALL_SHARED_MEMORY",
    "Tile",
    "WorkKind",
    "block_dim",
    "rows_of_16",
    "tile_for",
]

#: What heads are padded to inside the kernels; the last is the widest head they hold.
BLOCK_DIMS = (64, 128, 256)
#: Bytes of shared memory of one multiprocessor, by compute capability (CUDA C++ Programming Guide, table
#: "Technical Specifications per Compute Capability"). Each program takes 1 KiB more than it asks for.
SHARED_MEMORY = {80: 164 << 10, 90: 228 << 10, 100: 228 << 10}
#: The most that one program may have on compute capability 8.6, 8.9 and 12.0, whose tiles are those of 8.0.
SMALL_SHARED_MEMORY = 99 << 10
#: Registers of one multiprocessor, of all three.
REGISTERS = 64 << 10

#: Compute capabilities, by their major number, whose matrix product reads operands outside of registers.
_OPERANDS_IN_MEMORY = (9, 10)


class WorkKind(StrEnum):
    """Which of two tiles computes a request's tokens."""

    #: One token: bound by how fast keys and values are read.
    DECODE = "decode"
    #: Several tokens, which share the keys and values that are read.
    PREFILL = "prefill"


@dataclass(frozen=True, slots=True)
class Tile:
    """The constants of one attention kernel."""

    #: Query rows: tokens × the query heads that share a K/V head.
    rows: int
    #: Keys and values per step of the loop.
    keys: int
    num_warps: int
    num_stages: int
    #: The most registers of a thread, given to the compiler; None leaves it to choose.
    max_registers: int | None
    #: How many programs of this size work side by side on one multiprocessor.
    programs_per_sm: int


def block_dim(head_dim: int, head_dim_v: int) -> int:
    """Return what the heads of a layer are padded to; the cache is not padded."""
    return next(dim for dim in BLOCK_DIMS if dim >= max(head_dim, head_dim_v))


def tile_for(kind: WorkKind, dim: int, element_bytes: int, major: int) -> Tile:
    """Return the tile for heads padded to ``dim`` on a device of compute capability ``major``.x."""
    if element_bytes == 4:
        return Tile(rows=16, keys=16, num_warps=4, num_stages=2, max_registers=None, programs_per_sm=2)
    if kind is WorkKind.DECODE:
        # Left alone the compiler keeps to 128 registers for head size 128, and spills.
        registers = 168 if dim == 128 else None
        return Tile(
            rows=16,
            keys=8192 // dim,
            num_warps=4,
            num_stages=5,
            max_registers=registers,
            programs_per_sm=2,
        )
    keys = 64 if dim == 64 or (dim == 128 and major in _OPERANDS_IN_MEMORY) else 32
    return Tile(
        rows=64 if dim == 256 else 128,
        keys=keys,
        num_warps=8,
        num_stages=3,
        max_registers=None,
        programs_per_sm=1,
    )


def rows_of_16(dim: int) -> int:
    """Return how many rows of ``dim`` numbers make 16 for each thread of 4 warps."""
    return 2048 // dim
