# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# Triton gives these functions their types.
"""The kernel that writes a step's keys and values into the paged cache."""

import triton
import triton.language as tl

__all__ = ["write"]


@triton.jit(
    do_not_specialize=[
        "key_token_vectors",
        "key_head_vectors",
        "value_token_vectors",
        "value_head_vectors",
        "key_vectors",
        "value_vectors",
        "num_rows",
        "num_kv_heads",
        "block_shift",
    ],
    do_not_specialize_on_alignment=["slots"],
)
def write(
    key_cache,
    value_cache,
    key,
    value,
    slots,
    key_token_vectors,
    key_head_vectors,
    value_token_vectors,
    value_head_vectors,
    key_vectors,
    value_vectors,
    num_rows,
    num_kv_heads,
    block_shift,
    BLOCK_DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    """Copy ``BLOCK_ROWS`` rows, each one head of one token, to their slots.

    Caches and vectors are as in `attend`. Programs: ``ceil(num_rows / BLOCK_ROWS)`` with ``num_rows`` T ×
    num_kv_heads. ``key`` is ``[T, num_kv_heads, head_dim]``, ``value`` ``[…, head_dim_v]``, ``slots`` int32
    ``[T]``. Padding tokens have slot 0, in the null block, and may overwrite one another there.
    """
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    is_row = rows < num_rows
    token = (rows // num_kv_heads).to(tl.int64)
    head = rows % num_kv_heads
    # A cache may hold more than 2^31 elements: from here on all is 64 bits wide.
    slot = tl.load(slots + token, mask=is_row, other=0).to(tl.int64)
    cache_row = (((slot >> block_shift) * num_kv_heads + head) << block_shift) + (
        slot & ((1 << block_shift) - 1)
    )

    dims = tl.arange(0, BLOCK_DIM)
    head_dim = key_vectors * 8
    head_dim_v = value_vectors * 8
    is_key = is_row[:, None] & (dims[None, :] < head_dim)
    is_value = is_row[:, None] & (dims[None, :] < head_dim_v)
    key_row = token * (key_token_vectors * 8) + head * (key_head_vectors * 8)
    value_row = token * (value_token_vectors * 8) + head * (value_head_vectors * 8)
    keys = tl.load(key + key_row[:, None] + dims[None, :], mask=is_key)
    values = tl.load(value + value_row[:, None] + dims[None, :], mask=is_value)
    tl.store(key_cache + cache_row[:, None] * head_dim + dims[None, :], keys, mask=is_key)
    tl.store(value_cache + cache_row[:, None] * head_dim_v + dims[None, :], values, mask=is_value)
