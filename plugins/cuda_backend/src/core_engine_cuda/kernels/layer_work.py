"""LayerWork: how the layers of one kind use the kernels. Pure: no device."""

from __future__ import annotations

from dataclasses import dataclass

from core_engine_cuda.kernels.tiles import Tile, WorkKind, block_dim, tile_for
from core_engine_cuda.kernels.work_list import WorkPlan

__all__ = ["LayerWork", "layer_works"]

#: Rows that one program joins, one after the other: few tiles of decode work have many spans, prefill work
#: has many rows, most of which need no joining.
_JOIN_ROWS = {WorkKind.DECODE: 1, WorkKind.PREFILL: 16}


@dataclass(frozen=True, slots=True)
class LayerWork:
    """One kind of work of layers with equal heads, dtype and window."""

    kind: WorkKind
    tile: Tile
    #: What heads are padded to.
    dim: int
    #: The most query heads of one K/V head that a tile holds.
    tile_heads: int
    #: Tiles beside one another for the same tokens: one for each K/V head, more where its heads do not fit.
    num_head_tiles: int
    head_dim_v: int
    plan: WorkPlan

    @property
    def join_rows(self) -> int:
        """Rows that one program of `join` computes."""
        return _JOIN_ROWS[self.kind]

    @property
    def joins_per_tile(self) -> int:
        """Programs of `join` for the rows of one tile."""
        return -(-self.plan.tile_tokens * self.tile_heads // self.join_rows)

    @property
    def scale_floats(self) -> int:
        """Floats of scratch memory for the scales of partial results."""
        return self.plan.max_partials * self.num_head_tiles * self.tile.rows * 2

    @property
    def value_floats(self) -> int:
        """Floats of scratch memory for the values of partial results."""
        return self.plan.max_partials * self.num_head_tiles * self.tile.rows * self.head_dim_v


def layer_works(
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    head_dim_v: int,
    element_bytes: int,
    window: int | None,
    num_sms: int,
    major: int,
) -> tuple[LayerWork, LayerWork]:
    """Return the decode and the prefill work of layers on ``num_sms`` multiprocessors of ``major``.x.

    The spare items of a plan are as many as fill all multiprocessors by themselves.
    """
    dim = block_dim(head_dim, head_dim_v)
    group_size = num_heads // num_kv_heads

    def work(kind: WorkKind) -> LayerWork:
        tile = tile_for(kind, dim, element_bytes, major)
        tile_heads = min(group_size, tile.rows)
        num_head_tiles = num_kv_heads * -(-group_size // tile_heads)
        plan = WorkPlan(
            kind=kind,
            tile_tokens=1 if kind is WorkKind.DECODE else tile.rows // tile_heads,
            spare_items=-(-num_sms * tile.programs_per_sm // num_head_tiles),
            window=window,
        )
        return LayerWork(kind, tile, dim, tile_heads, num_head_tiles, head_dim_v, plan)

    return work(WorkKind.DECODE), work(WorkKind.PREFILL)
