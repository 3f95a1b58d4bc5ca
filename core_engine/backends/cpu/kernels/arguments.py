"""How the attention kernel is told its work: an argument block per call, a plan per step.

Both are flat integer arrays whose addresses are passed, because a call with twenty Python objects
would cost more than a short step. The names below are indices into them. Torch-free.
"""

from __future__ import annotations

__all__ = [
    "BLOCK_SIZE",
    "CHUNK",
    "GROUP_SIZE",
    "HEAD_DIM",
    "HEAD_DIM_V",
    "ITEM_FIELDS",
    "KEYS",
    "KEY_CACHE",
    "KEY_HEAD_STRIDE",
    "KEY_TOKEN_STRIDE",
    "MAX_TILE_TOKENS",
    "MERGE_FIELDS",
    "NUM_ARGUMENTS",
    "NUM_KV_HEADS",
    "NUM_THREADS",
    "OUTPUT",
    "PAIR_SHIFT",
    "PARTIALS",
    "PLAN",
    "PLAN_HEADER",
    "PLAN_IS_MIXED",
    "PLAN_NUM_ITEMS",
    "PLAN_NUM_MERGES",
    "PLAN_NUM_TOKENS",
    "PLAN_PADDED_TOKENS",
    "QUERIES",
    "QUERY_HEAD_STRIDE",
    "QUERY_TOKEN_STRIDE",
    "ROW_ELEMENTS_V",
    "SCALE_BITS",
    "SCRATCH",
    "SINKS",
    "SLOTS",
    "SOFT_CAP_BITS",
    "TABLES",
    "TABLE_WIDTH",
    "VALUES",
    "VALUE_CACHE",
    "VALUE_HEAD_STRIDE",
    "VALUE_TOKEN_STRIDE",
    "WINDOW",
    "scratch_floats",
]

#: Query tokens that are computed together, at most.
MAX_TILE_TOKENS = 16
#: Positions of the context that are computed together; a multiple of every block size.
CHUNK = 128

# The argument block (int64). What changes with every call comes first; strides count elements.
(
    PLAN,
    SLOTS,
    TABLES,
    TABLE_WIDTH,
    QUERIES,
    QUERY_TOKEN_STRIDE,
    QUERY_HEAD_STRIDE,
    KEYS,  # 0 where the layer writes nothing
    KEY_TOKEN_STRIDE,
    KEY_HEAD_STRIDE,
    VALUES,
    VALUE_TOKEN_STRIDE,
    VALUE_HEAD_STRIDE,
    OUTPUT,
    SINKS,  # float32, 0 where there are none
    SCRATCH,  # float32, `scratch_floats` for each thread
    PARTIALS,  # float32, for contexts that are divided
    # What is constant for a layer.
    KEY_CACHE,
    VALUE_CACHE,
    NUM_KV_HEADS,
    GROUP_SIZE,  # query heads that share one K/V head
    HEAD_DIM,
    HEAD_DIM_V,
    ROW_ELEMENTS_V,  # head_dim_v rounded up to whole vectors
    BLOCK_SIZE,
    PAIR_SHIFT,  # 1 where two rows of the cache are interleaved (bfloat16), else 0
    WINDOW,
    SCALE_BITS,  # float32 as its bits
    SOFT_CAP_BITS,  # 0.0 where there is no cap
    NUM_THREADS,
    NUM_ARGUMENTS,
) = range(31)

# The plan (int32): a header, the items, the merges.
(
    PLAN_NUM_ITEMS,
    PLAN_NUM_MERGES,
    PLAN_IS_MIXED,  # some request computes several tokens: all keys and values are written first
    PLAN_NUM_TOKENS,
    PLAN_PADDED_TOKENS,
    PLAN_HEADER,
) = range(6)

#: An item: request row, first token, number of tokens, first token's position, first and last + 1
#: position of the context, index among the partial results or −1.
ITEM_FIELDS = 7
#: A merge of partial results: token, first partial, number of partials.
MERGE_FIELDS = 3


def scratch_floats(group_size: int, head_dim: int, row_elements_v: int) -> int:
    """Return the float32 numbers that one thread needs: queries, scores, output, maxima and sums."""
    return MAX_TILE_TOKENS * group_size * (head_dim + CHUNK + row_elements_v + 2)
