# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
# numba gives these functions their types.
"""Paged attention in numba: reads keys and values where they lie in the cache.

One *item* is a tile of at most 16 tokens of one request and a range of its context. A thread takes
(item, K/V head) pairs, about equal shares of the work. For a pair it walks over its context in chunks
of 128 positions with an online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867): scores of all
tokens and of all query heads of the K/V head are one matrix product with a block of the key cache, so
a block is read once for all of them; the output is another product with the block of values.

Cache layout, per block and K/V head: keys ``[head_dim, block_size]``, values ``[block_size,
head_dim_v]`` with rows padded to whole vectors. Rows of bfloat16 are interleaved two by two
(``[rows / 2, columns, 2]``).
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange, types

from core_engine.backends.cpu.kernels.arguments import (
    BLOCK_SIZE,
    CHUNK,
    GROUP_SIZE,
    HEAD_DIM,
    HEAD_DIM_V,
    ITEM_FIELDS,
    KEY_CACHE,
    KEY_HEAD_STRIDE,
    KEY_TOKEN_STRIDE,
    KEYS,
    MAX_TILE_TOKENS,
    MERGE_FIELDS,
    NUM_KV_HEADS,
    NUM_THREADS,
    OUTPUT,
    PAIR_SHIFT,
    PARTIALS,
    PLAN,
    PLAN_HEADER,
    PLAN_IS_MIXED,
    PLAN_NUM_ITEMS,
    PLAN_NUM_MERGES,
    PLAN_NUM_TOKENS,
    PLAN_PADDED_TOKENS,
    QUERIES,
    QUERY_HEAD_STRIDE,
    QUERY_TOKEN_STRIDE,
    ROW_ELEMENTS_V,
    SCALE_BITS,
    SCRATCH,
    SINKS,
    SLOTS,
    SOFT_CAP_BITS,
    TABLE_WIDTH,
    TABLES,
    VALUE_CACHE,
    VALUE_HEAD_STRIDE,
    VALUE_TOKEN_STRIDE,
    VALUES,
    WINDOW,
)
from core_engine.backends.cpu.kernels.matrix_product import add_product
from core_engine.backends.cpu.kernels.softmax import LOWEST, exp, softmax_row
from core_engine.backends.cpu.kernels.vector_ops import (
    bits_float,
    call_address,
    load_element,
    moved,
    prefetch_page,
    store_element,
    typed_pointer,
)

_WRITE, _ATTEND, _MERGE = range(3)
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
#: Keeps a query that sees nothing from dividing by zero.
_TINY = np.float32(1e-30)


@njit(parallel=True, cache=True)
def run_step(kernel, args):
    """Write and attend for one layer: ``kernel`` is the address of a compiled `attend_*` function,
    ``args`` the argument block. The only parallel code; it knows no format.
    """
    plan = typed_pointer(args[PLAN], types.int32)
    num_threads = args[NUM_THREADS]
    address = args.ctypes.data
    if plan[PLAN_IS_MIXED] != 0 and args[KEYS] != 0:
        for thread in prange(num_threads):
            call_address(kernel, _WRITE, np.int64(thread), address)
    for thread in prange(num_threads):
        call_address(kernel, _ATTEND, np.int64(thread), address)
    for merge in range(np.int64(plan[PLAN_NUM_MERGES])):
        call_address(kernel, _MERGE, merge, address)


def attend_float32(stage, index, address):
    """Do one stage of a step whose cache, inputs and output are float32."""
    _run_stage(stage, index, typed_pointer(address, types.int64), types.float32)


def attend_float16(stage, index, address):
    """Do one stage of a step whose cache, inputs and output are float16."""
    _run_stage(stage, index, typed_pointer(address, types.int64), types.uint16)


def attend_bfloat16(stage, index, address):
    """Do one stage of a step whose cache, inputs and output are bfloat16."""
    _run_stage(stage, index, typed_pointer(address, types.int64), types.uint32)


@njit(inline="always")
def _run_stage(stage, index, args, storage):
    if stage == _WRITE:
        _write_share(index, args, storage)
    elif stage == _ATTEND:
        _attend_share(index, args, storage)
    else:
        _merge_partials(index, args, storage)


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _write_share(thread, args, storage):
    """Write one thread's share of the step's tokens."""
    num_tokens = np.int64(typed_pointer(args[PLAN], types.int32)[PLAN_NUM_TOKENS])
    first = num_tokens * thread // args[NUM_THREADS]
    stop = num_tokens * (thread + 1) // args[NUM_THREADS]
    for head in range(args[NUM_KV_HEADS]):
        for token in range(first, stop):
            _write_token(args, storage, token, head)


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _write_token(args, storage, token, head):
    """Write the key and the value of one token and K/V head into the cache."""
    block_size, shift = args[BLOCK_SIZE], args[PAIR_SHIFT]
    slot = np.int64(typed_pointer(args[SLOTS], types.int32)[token])
    page = slot // block_size * args[NUM_KV_HEADS] + head
    offset, low = slot % block_size, (1 << shift) - 1

    keys = typed_pointer(args[KEYS], storage)
    source = token * args[KEY_TOKEN_STRIDE] + head * args[KEY_HEAD_STRIDE]
    target, place = typed_pointer(args[KEY_CACHE], storage), page * args[HEAD_DIM] * block_size
    for d in range(args[HEAD_DIM]):
        at = place + (((d >> shift) * block_size + offset) << shift) + (d & low)
        store_element(target, at, load_element(keys, source + d))

    values = typed_pointer(args[VALUES], storage)
    source = token * args[VALUE_TOKEN_STRIDE] + head * args[VALUE_HEAD_STRIDE]
    target, width = typed_pointer(args[VALUE_CACHE], storage), args[ROW_ELEMENTS_V]
    place = page * block_size * width + (((offset >> shift) * width) << shift) + (offset & low)
    for d in range(args[HEAD_DIM_V]):
        store_element(target, place + (d << shift), load_element(values, source + d))


@njit(inline="always")
def _attend_share(thread, args, storage):
    """Compute one thread's share of the (item, K/V head) pairs and zero the padding rows."""
    plan = typed_pointer(args[PLAN], types.int32)
    f = typed_pointer(args[SCRATCH], types.float32)
    partials = typed_pointer(args[PARTIALS], types.float32)
    output = typed_pointer(args[OUTPUT], storage)
    num_kv_heads, group_size, num_threads = args[NUM_KV_HEADS], args[GROUP_SIZE], args[NUM_THREADS]
    num_heads, head_dim_v, width = num_kv_heads * group_size, args[HEAD_DIM_V], args[ROW_ELEMENTS_V]

    max_rows = MAX_TILE_TOKENS * group_size
    queries = thread * max_rows * (args[HEAD_DIM] + CHUNK + width + 2)
    scores = queries + max_rows * args[HEAD_DIM]
    sums = scores + max_rows * CHUNK
    highest = sums + max_rows * width
    totals = highest + max_rows

    # In a decode step each pair writes its own token; the write of another's is never read.
    writes = args[KEYS] != 0 and plan[PLAN_IS_MIXED] == 0
    cost = np.int64(0)
    for item in range(np.int64(plan[PLAN_NUM_ITEMS])):
        at = PLAN_HEADER + item * ITEM_FIELDS
        cost += np.int64(plan[at + 2]) * (plan[at + 5] - plan[at + 4]) * num_kv_heads
    mine, stop, before = cost * thread // num_threads, cost * (thread + 1) // num_threads, np.int64(0)
    for item in range(np.int64(plan[PLAN_NUM_ITEMS])):
        at = PLAN_HEADER + item * ITEM_FIELDS
        row, token = np.int64(plan[at]), np.int64(plan[at + 1])
        num_tokens, position = np.int64(plan[at + 2]), np.int64(plan[at + 3])
        first, last, partial = np.int64(plan[at + 4]), np.int64(plan[at + 5]), np.int64(plan[at + 6])
        for head in range(num_kv_heads):
            is_mine = mine <= before and before < stop
            before += num_tokens * (last - first)
            if not is_mine:
                continue
            if writes and last == position + 1:
                _write_token(args, storage, token, head)
            _attend_pair(
                args, storage, row, token, num_tokens, position, first, last, head,
                f, queries, scores, sums, highest, totals,
            )  # fmt: skip
            for i in range(num_tokens * group_size):
                query_head = head * group_size + i % group_size
                if partial < 0:
                    factor = _ONE / max(f[totals + i], _TINY)
                    target = ((token + i // group_size) * num_heads + query_head) * head_dim_v
                    for d in range(head_dim_v):
                        store_element(output, target + d, f[sums + i * width + d] * factor)
                else:
                    target = (partial * num_heads + query_head) * (head_dim_v + 2)
                    partials[target] = f[highest + i]
                    partials[target + 1] = f[totals + i]
                    for d in range(head_dim_v):
                        partials[target + 2 + d] = f[sums + i * width + d]
    if thread == 0:
        start = np.int64(plan[PLAN_NUM_TOKENS]) * num_heads * head_dim_v
        for j in range(start, np.int64(plan[PLAN_PADDED_TOKENS]) * num_heads * head_dim_v):
            store_element(output, j, _ZERO)


@njit(inline="always")
def _attend_pair(
    args, storage, row, token, num_tokens, position, first, last, head,
    f, queries, scores, sums, highest, totals,
):  # fmt: skip
    """Attend for the query heads of one K/V head over positions ``first`` to ``last`` of one request.

    ``f`` is the scratch memory; ``queries`` … ``totals`` are places in it. Row ``i`` is token
    ``i // group_size`` of the tile and query head ``i % group_size`` of the K/V head. Leaves
    weighted values in ``sums``, their largest scores in ``highest`` and sums of weights in ``totals``.
    """
    num_kv_heads, group_size, block_size = args[NUM_KV_HEADS], args[GROUP_SIZE], args[BLOCK_SIZE]
    head_dim, width, shift = args[HEAD_DIM], args[ROW_ELEMENTS_V], args[PAIR_SHIFT]
    scale, soft_cap = bits_float(np.int32(args[SCALE_BITS])), bits_float(np.int32(args[SOFT_CAP_BITS]))
    window = args[WINDOW]
    table = moved(typed_pointer(args[TABLES], types.int32), row * args[TABLE_WIDTH])
    key_cache = typed_pointer(args[KEY_CACHE], storage)
    value_cache = typed_pointer(args[VALUE_CACHE], storage)
    source = typed_pointer(args[QUERIES], storage)
    sinks = typed_pointer(args[SINKS], types.float32)
    has_sink = args[SINKS] != 0 and first == 0
    num_rows = num_tokens * group_size

    for i in range(num_rows):
        start = (token + i // group_size) * args[QUERY_TOKEN_STRIDE]
        start += (head * group_size + i % group_size) * args[QUERY_HEAD_STRIDE]
        for d in range(head_dim):
            f[queries + i * head_dim + d] = load_element(source, start + d)
        f[highest + i] = LOWEST
        f[totals + i] = _ZERO
        if has_sink:
            f[highest + i] = sinks[head * group_size + i % group_size]
            f[totals + i] = _ONE
    for j in range(sums, sums + num_rows * width):
        f[j] = _ZERO

    first = max(first, position - window + 1)
    key_page, value_page = (head_dim * block_size) >> shift, (block_size * width) >> shift
    for chunk in range(first // block_size * block_size, last, CHUNK):
        length = min(CHUNK, last - chunk)
        num_blocks = (length + block_size - 1) // block_size
        for j in range(scores, scores + num_rows * CHUNK):
            f[j] = _ZERO
        for block in range(num_blocks):
            page = np.int64(table[chunk // block_size + block]) * num_kv_heads + head
            # Pages lie apart: the processor does not foresee the next one.
            prefetch_page(value_cache, page * value_page, value_page)
            if chunk + (block + 1) * block_size < last:
                following = np.int64(table[chunk // block_size + block + 1]) * num_kv_heads + head
                prefetch_page(key_cache, following * key_page, key_page)
            add_product(
                f, queries, head_dim, key_cache, page * key_page, block_size,
                f, scores + block * block_size, CHUNK, num_rows, block_size, head_dim,
            )  # fmt: skip
        for i in range(num_rows):
            own_position = position + i // group_size
            seen_from = max(0, max(first, own_position - window + 1) - chunk)
            seen_to = max(seen_from, min(length, own_position + 1 - chunk))
            before = f[highest + i]
            now, total = softmax_row(
                f, scores + i * CHUNK, num_blocks * block_size, seen_from, seen_to, scale, soft_cap, before
            )
            if now != before:
                factor = exp(before - now)
                f[highest + i] = now
                f[totals + i] *= factor
                for j in range(sums + i * width, sums + (i + 1) * width):
                    f[j] *= factor
            f[totals + i] += total
        for block in range(num_blocks):
            page = np.int64(table[chunk // block_size + block]) * num_kv_heads + head
            start = block * block_size
            add_product(
                f, scores + start, CHUNK, value_cache, page * value_page, width,
                f, sums, width, num_rows, width, min(block_size, length - start),
            )  # fmt: skip


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _merge_partials(merge, args, storage):
    """Join the partial results of one token's divided context."""
    plan = typed_pointer(args[PLAN], types.int32)
    partials = typed_pointer(args[PARTIALS], types.float32)
    output = typed_pointer(args[OUTPUT], storage)
    num_heads, head_dim_v = args[NUM_KV_HEADS] * args[GROUP_SIZE], args[HEAD_DIM_V]
    at = PLAN_HEADER + np.int64(plan[PLAN_NUM_ITEMS]) * ITEM_FIELDS + merge * MERGE_FIELDS
    token, first, count = np.int64(plan[at]), np.int64(plan[at + 1]), np.int64(plan[at + 2])
    size = head_dim_v + 2
    for head in range(num_heads):
        highest = LOWEST
        for part in range(first, first + count):
            highest = max(highest, partials[(part * num_heads + head) * size])
        total = _ZERO
        for part in range(first, first + count):
            start = (part * num_heads + head) * size
            weight = exp(partials[start] - highest)
            partials[start] = weight
            total += weight * partials[start + 1]
        factor = _ONE / max(total, _TINY)
        for d in range(head_dim_v):
            number = _ZERO
            for part in range(first, first + count):
                start = (part * num_heads + head) * size
                number += partials[start] * partials[start + 2 + d]
            store_element(output, (token * num_heads + head) * head_dim_v + d, number * factor)
