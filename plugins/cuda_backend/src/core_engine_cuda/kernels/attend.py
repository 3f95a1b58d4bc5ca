# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# Triton gives these functions their types.
"""The attention kernel: a tile of one request's queries over a span of its cached positions.

Online softmax as in FlashAttention-2 (https://arxiv.org/abs/2307.08691), over keys and values that are
found by a block table as in PagedAttention (https://arxiv.org/abs/2309.06180). The query heads that share a
K/V head stand in one tile, so that what is read once serves them all and a matrix product is used for a
single token too.
"""

import triton
import triton.language as tl

from core_engine_cuda.kernels.work_list import ITEM_FIELDS

__all__ = ["LOWEST", "attend"]

#: Stands for the highest score before any was seen; finite, so that no difference of two is NaN.
LOWEST = tl.constexpr(-1.0e30)
_ITEM_FIELDS = tl.constexpr(ITEM_FIELDS)
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(
    do_not_specialize=[
        "query_token_vectors",
        "query_head_vectors",
        "key_vectors",
        "value_vectors",
        "table_width",
        "num_kv_heads",
        "group_size",
        "tile_heads",
        "block_shift",
        "window",
        "has_sinks",
    ],
    do_not_specialize_on_alignment=["sinks", "block_tables", "items"],
)
def attend(
    output,
    partial_values,
    partial_scales,
    query,
    key_cache,
    value_cache,
    sinks,
    block_tables,
    items,
    query_token_vectors,
    query_head_vectors,
    key_vectors,
    value_vectors,
    table_width,
    num_kv_heads,
    group_size,
    tile_heads,
    block_shift,
    window,
    has_sinks,
    scale,
    soft_cap,
    BLOCK_DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
):
    """Compute one item (`work_list`) for up to ``tile_heads`` query heads of one K/V head.

    Programs: W items × head tiles, where a K/V head's ``group_size`` query heads make
    ``ceil(group_size / tile_heads)`` head tiles. Rows of a tile are ordered by token, then by head.

    ``output`` is ``[T, num_heads, head_dim_v]``, ``query`` ``[T, num_heads, head_dim]``, ``key_cache``
    ``[num_blocks, num_kv_heads, block_size, head_dim]``, ``value_cache`` ``[…, head_dim_v]``, ``sinks``
    ``[num_heads]`` (read if ``has_sinks``), ``block_tables`` int32 ``[R, table_width]``, ``items`` int32
    ``[W, ITEM_FIELDS]``. ``partial_values`` is float32 ``[P, head tiles, BLOCK_ROWS, head_dim_v]``, and
    ``partial_scales`` float32 ``[…, BLOCK_ROWS, 2]``: of items that are one span of several, the weighted
    values, the highest score to base 2, and the sum of weights.

    Head sizes and strides of ``query`` come in vectors of 8 elements: a product by 8 tells the compiler
    that rows are aligned to 16 bytes, whatever the numbers, so one kernel serves all head sizes up to
    ``BLOCK_DIM``. ``block_size`` is ``1 << block_shift``. A query sees ``window`` positions, its own
    included. ``soft_cap`` counts if ``HAS_SOFT_CAP``.
    """
    head_tiles_per_kv_head = tl.cdiv(group_size, tile_heads)
    num_head_tiles = num_kv_heads * head_tiles_per_kv_head
    program = tl.program_id(0)
    head_tile = program % num_head_tiles
    kv_head = head_tile // head_tiles_per_kv_head
    first_head = (head_tile % head_tiles_per_kv_head) * tile_heads

    item = items + (program // num_head_tiles) * _ITEM_FIELDS
    request = tl.load(item)
    first_token = tl.load(item + 1)
    num_tokens = tl.load(item + 2)
    first_position = tl.load(item + 3)
    span_start = tl.load(item + 4)
    span_end = tl.load(item + 5)
    partial = tl.load(item + 6)
    is_first_span = tl.load(item + 7)
    if num_tokens == 0:
        return

    rows = tl.arange(0, BLOCK_ROWS)
    dims = tl.arange(0, BLOCK_DIM)
    head_dim = key_vectors * 8
    head_dim_v = value_vectors * 8
    row_token = rows // tile_heads
    row_head = first_head + rows % tile_heads
    row_is_real = (row_token < num_tokens) & (row_head < group_size)
    row_head = kv_head * group_size + row_head
    row_last = first_position + row_token
    row_first = row_last - window + 1
    row_last = tl.minimum(row_last, span_end - 1)
    token = (first_token + row_token).to(tl.int64)

    query_row = token * (query_token_vectors * 8) + row_head * (query_head_vectors * 8)
    queries = tl.load(
        query + query_row[:, None] + dims[None, :],
        mask=row_is_real[:, None] & (dims[None, :] < head_dim),
        other=0.0,
    )

    # A sink is a score without a value. It counts once, so in the first span.
    sees_sink = row_is_real & (row_token < num_tokens * has_sinks * is_first_span)
    sink = tl.load(sinks + row_head, mask=sees_sink, other=0.0).to(tl.float32)
    highest = tl.where(sees_sink, sink * _LOG2_E, LOWEST)
    total = tl.where(sees_sink, 1.0, 0.0)
    summed = tl.zeros([BLOCK_ROWS, BLOCK_DIM], dtype=tl.float32)

    table = block_tables + request.to(tl.int64) * table_width
    for start in range(span_start, span_end, BLOCK_KEYS):
        positions = start + tl.arange(0, BLOCK_KEYS)
        in_span = positions < span_end
        block = tl.load(table + (positions >> block_shift), mask=in_span, other=0).to(tl.int64)
        cache_row = ((block * num_kv_heads + kv_head) << block_shift) + (positions & ((1 << block_shift) - 1))

        # What lies outside the span may hold anything, NaN included: neither keys nor values are read.
        keys = tl.load(
            key_cache + cache_row[:, None] * head_dim + dims[None, :],
            mask=in_span[:, None] & (dims[None, :] < head_dim),
            other=0.0,
        )
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
        if HAS_SOFT_CAP:
            # tanh(x) = 1 - 2 / (exp(2 x) + 1), which has the right limits at both ends.
            squashed = 1.0 - 2.0 / (tl.exp2(scores * (2.0 * _LOG2_E * scale / soft_cap)) + 1.0)
            scores = squashed * (soft_cap * _LOG2_E)
        else:
            scores = scores * (scale * _LOG2_E)
        visible = (positions[None, :] >= row_first[:, None]) & (positions[None, :] <= row_last[:, None])
        scores = tl.where(visible, scores, float("-inf"))

        new_highest = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - new_highest[:, None])
        shrink = tl.exp2(highest - new_highest)
        total = total * shrink + tl.sum(weights, 1)
        summed = summed * shrink[:, None]
        highest = new_highest

        values = tl.load(
            value_cache + cache_row[:, None] * head_dim_v + dims[None, :],
            mask=in_span[:, None] & (dims[None, :] < head_dim_v),
            other=0.0,
        )
        summed = tl.dot(weights.to(values.dtype), values, summed, input_precision="ieee")

    is_stored = row_is_real[:, None] & (dims[None, :] < head_dim_v)
    if partial < 0:
        # Rows that saw nothing are zero.
        averaged = summed / tl.where(total == 0.0, 1.0, total)[:, None]
        output_row = (token * (num_kv_heads * group_size) + row_head) * head_dim_v
        tl.store(
            output + output_row[:, None] + dims[None, :], averaged.to(output.dtype.element_ty), mask=is_stored
        )
    else:
        partial_row = (partial.to(tl.int64) * num_head_tiles + head_tile) * BLOCK_ROWS + rows
        tl.store(partial_values + partial_row[:, None] * head_dim_v + dims[None, :], summed, mask=is_stored)
        tl.store(partial_scales + partial_row * 2, highest, mask=row_is_real)
        tl.store(partial_scales + partial_row * 2 + 1, total, mask=row_is_real)
