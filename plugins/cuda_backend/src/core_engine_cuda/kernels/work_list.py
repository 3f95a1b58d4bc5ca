"""How a step's attention is divided among programs. Pure numpy.

Tokens of one request that are computed together are a *tile*. A tile whose cached positions are many is
divided into *spans*, and each span is an *item*, the work of one program for each head; the spans of a tile
are joined afterwards. That is Flash-Decoding (https://crfm.stanford.edu/2023/10/12/flashdecoding.html), with
spans whose length is worked out for each step from what its requests hold, as in FlashInfer
(https://arxiv.org/abs/2501.01005): a long request among short ones is divided, and the short ones are not.

A captured graph replays one grid for every step, so the number of items depends on the padded step alone:
as many as tiles, and ``spare_items`` more. With N tiles that see L positions in all, spans of L /
spare_items positions make at most N + spare_items of them. Items that a step does not need have no token,
and their programs end at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core_engine.plugin.runtime import Array, HostStep, IntArray, StepKind, StepShape
from core_engine_cuda.kernels.tiles import WorkKind

__all__ = ["ITEM_FIELDS", "JOIN_FIELDS", "SPAN_GRANULE", "WorkPlan"]

#: An item: request row, first token, number of tokens, position of the first token, first position of the
#: span, end of the span, index of its partial result (−1: it is the only span), whether it is the tile's
#: first span.
ITEM_FIELDS = 8
#: A join: first token, number of tokens, index of its first partial result, number of partial results.
JOIN_FIELDS = 4
#: Spans are whole multiples of this many positions: whole blocks of the cache, whole tiles of keys.
SPAN_GRANULE = 128


@dataclass(frozen=True, slots=True)
class WorkPlan:
    """How the layers of one kind divide their work; layers with equal plans share a list."""

    kind: WorkKind
    #: The most tokens of a tile.
    tile_tokens: int
    #: Items beyond one for each tile.
    spare_items: int
    #: Positions that a query sees, its own included; None for all.
    window: int | None

    @property
    def items_name(self) -> str:
        """The name of the items in the step's metadata."""
        return f"{self.kind}_items_{self.tile_tokens}_{self.spare_items}_{self.window}"

    @property
    def joins_name(self) -> str:
        """The name of the joins in the step's metadata."""
        return f"{self.kind}_joins_{self.tile_tokens}_{self.spare_items}_{self.window}"

    @property
    def max_partials(self) -> int:
        """The most spans of divided tiles: fewer than ``spare_items`` tiles are longer than a span."""
        return 2 * self.spare_items

    def build(self, step: HostStep, block_size: int) -> tuple[IntArray, IntArray]:
        """Return the items ``[tiles + spare_items, ITEM_FIELDS]`` and joins ``[spare_items, JOIN_FIELDS]``.

        Unused rows are zero. Padding tokens belong to tiles that see nothing, so that their output is
        zero. Long tiles stand first: what is started last should end soon.
        """
        request, first, count, position, is_real = _tiles(self, step)
        last = position + count
        start = np.zeros_like(last)
        if self.window is not None:
            # Whole blocks; the block that holds the first visible position is the request's own.
            start = np.maximum(0, position - self.window + 1) // block_size * block_size
        length = np.where(is_real, last - start, 0)

        order = np.argsort(-length, kind="stable")
        request, first, count, position, start, length = (
            part[order] for part in (request, first, count, position, start, length)
        )
        span = self._span_length(int(length.sum(dtype=np.int64)))
        spans = np.maximum(1, -(-length // span))
        is_divided = spans > 1
        partials = np.where(is_divided, spans, 0)
        first_partial = np.cumsum(partials) - partials

        tile = np.repeat(np.arange(len(spans)), spans)
        nth = np.arange(len(tile)) - (np.cumsum(spans) - spans)[tile]
        span_start = start[tile] + nth * span
        items = np.zeros((self.num_tiles(step.shape) + self.spare_items, ITEM_FIELDS), dtype=np.int32)
        items[: len(tile)] = np.column_stack(
            [
                request[tile],
                first[tile],
                count[tile],
                position[tile],
                span_start,
                np.minimum(span_start + span, (start + length)[tile]),
                np.where(is_divided[tile], first_partial[tile] + nth, -1),
                nth == 0,
            ]
        )
        joins = np.zeros((self.spare_items, JOIN_FIELDS), dtype=np.int32)
        joins[: is_divided.sum()] = np.column_stack([first, count, first_partial, spans])[is_divided]
        return items, joins

    def num_tiles(self, shape: StepShape) -> int:
        """Return the most tiles of a step of ``shape``, those of padding tokens included."""
        if shape.kind is StepKind.DECODE:
            return shape.num_tokens
        if self.kind is WorkKind.DECODE:
            return min(shape.num_tokens, shape.num_reqs)
        return min(shape.num_tokens, shape.num_tokens // self.tile_tokens + shape.num_reqs + 1)

    def _span_length(self, num_positions: int) -> int:
        granules = -(-num_positions // (self.spare_items * SPAN_GRANULE))
        return max(1, granules) * SPAN_GRANULE


def _tiles(plan: WorkPlan, step: HostStep) -> tuple[Array, ...]:
    """Cut the step's tokens into tiles: request rows, first tokens, counts, positions, whether real.

    In a mixed step requests with one token are decode work, all others and padding prefill work.
    """
    counts = np.diff(step.query_start)
    if step.shape.kind is StepKind.DECODE:
        first = np.arange(step.shape.num_tokens, dtype=np.int32)
        is_real = step.token_rows >= 0
        return np.maximum(step.token_rows, 0), first, np.ones_like(first), step.positions, is_real
    if plan.kind is WorkKind.DECODE:
        rows = np.flatnonzero(counts == 1).astype(np.int32)
        first = step.query_start[rows]
        return rows, first, np.ones_like(first), step.positions[first], np.ones(len(rows), dtype=np.bool_)

    rows = np.flatnonzero(counts > 1).astype(np.int32)
    # Padding is one more row, behind the last real token.
    starts = np.append(step.query_start[rows], np.int32(step.num_tokens))
    sizes = np.append(counts[rows], np.int32(step.shape.num_tokens - step.num_tokens))
    tiles_of_row = -(-sizes // plan.tile_tokens)
    row = np.repeat(np.arange(len(starts)), tiles_of_row)
    nth = np.arange(len(row)) - (np.cumsum(tiles_of_row) - tiles_of_row)[row]
    first = (starts[row] + nth * plan.tile_tokens).astype(np.int32)
    count = np.minimum(plan.tile_tokens, (starts + sizes)[row] - first).astype(np.int32)
    is_real = row < len(rows)
    request = np.append(rows, np.int32(0))[row]
    return request, first, count, np.where(is_real, step.positions[first], 0), is_real
