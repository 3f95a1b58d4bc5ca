# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# Triton gives these functions their types.
"""The kernel that joins the spans of a tile which several programs computed.

The reduction of Flash-Decoding (https://crfm.stanford.edu/2023/10/12/flashdecoding.html): each span's values
weigh as much as its sum of weights, brought to the highest score of all spans.
"""

import triton
import triton.language as tl

from core_engine_cuda.kernels.attend import LOWEST
from core_engine_cuda.kernels.work_list import JOIN_FIELDS

__all__ = ["join"]

_JOIN_FIELDS = tl.constexpr(JOIN_FIELDS)


@triton.jit(
    do_not_specialize=[
        "value_vectors",
        "num_kv_heads",
        "group_size",
        "tile_heads",
        "tile_rows",
        "program_rows",
    ],
    do_not_specialize_on_alignment=["joins"],
)
def join(
    output,
    partial_values,
    partial_scales,
    joins,
    value_vectors,
    num_kv_heads,
    group_size,
    tile_heads,
    tile_rows,
    program_rows,
    BLOCK_DIM: tl.constexpr,
    BLOCK_SPANS: tl.constexpr,
):
    """Write the rows of one divided tile for one head tile; arguments as in `attend`.

    Programs: (joins × head tiles, ``ceil(rows in use / program_rows)``). ``joins`` is int32
    ``[spare items, JOIN_FIELDS]``; ``tile_rows`` is the number of rows of `attend`'s tiles. A program
    computes ``program_rows`` rows, one after the other, and reads ``BLOCK_SPANS`` spans at a time.
    """
    head_tiles_per_kv_head = tl.cdiv(group_size, tile_heads)
    num_head_tiles = num_kv_heads * head_tiles_per_kv_head
    program = tl.program_id(0)
    head_tile = program % num_head_tiles
    first_head = (head_tile % head_tiles_per_kv_head) * tile_heads
    kv_head = head_tile // head_tiles_per_kv_head

    entry = joins + (program // num_head_tiles) * _JOIN_FIELDS
    first_token = tl.load(entry)
    num_tokens = tl.load(entry + 1)
    first_partial = tl.load(entry + 2)
    num_partials = tl.load(entry + 3)
    first_row = tl.program_id(1) * program_rows
    end_row = tl.minimum(first_row + program_rows, num_tokens * tile_heads)

    dims = tl.arange(0, BLOCK_DIM)
    head_dim_v = value_vectors * 8
    for row in range(first_row, end_row):
        head = first_head + row % tile_heads
        # The last head tile of a K/V head may have rows without a head, which no span wrote.
        end_span = tl.where(head < group_size, num_partials, 0)
        highest = LOWEST
        total = 0.0
        summed = tl.zeros([BLOCK_DIM], dtype=tl.float32)
        for start in range(0, end_span, BLOCK_SPANS):
            spans = start + tl.arange(0, BLOCK_SPANS)
            is_span = spans < end_span
            partial = (first_partial + spans).to(tl.int64)
            partial_row = (partial * num_head_tiles + head_tile) * tile_rows + row
            scores = tl.load(partial_scales + partial_row * 2, mask=is_span, other=float("-inf"))
            totals = tl.load(partial_scales + partial_row * 2 + 1, mask=is_span, other=0.0)
            values = tl.load(
                partial_values + partial_row[:, None] * head_dim_v + dims[None, :],
                mask=is_span[:, None] & (dims[None, :] < head_dim_v),
                other=0.0,
            )
            new_highest = tl.maximum(highest, tl.max(scores, 0))
            weights = tl.exp2(scores - new_highest)
            shrink = tl.exp2(highest - new_highest)
            total = total * shrink + tl.sum(weights * totals, 0)
            summed = summed * shrink + tl.sum(weights[:, None] * values, 0)
            highest = new_highest

        token = (first_token + row // tile_heads).to(tl.int64)
        output_row = (token * (num_kv_heads * group_size) + kv_head * group_size + head) * head_dim_v
        tl.store(
            output + output_row + dims,
            (summed / tl.where(total == 0.0, 1.0, total)).to(output.dtype.element_ty),
            mask=dims < tl.where(head < group_size, head_dim_v, 0),
        )
