"""Divides a step's attention into items of work for the CPU kernel."""

from __future__ import annotations

import numpy as np

from core_engine.backends.cpu.kernels import arguments as a
from core_engine.plugin.runtime import HostStep, IntArray, StepKind

__all__ = ["build_plan", "max_partials"]

#: Enough pieces of work per thread that unequal ones even out.
_ITEMS_PER_THREAD = 4
#: Positions below which dividing a context costs more than it saves.
_MIN_SPLIT = 256


def build_plan(step: HostStep, block_size: int, num_threads: int) -> IntArray:
    """Return the plan of a step, laid out as `core_engine.backends.cpu.kernels.arguments` says.

    Requests with several tokens are cut into tiles of at most 16 tokens. When there are few requests,
    the context of a request with one token is divided, so that every thread has work.
    """
    wanted = _ITEMS_PER_THREAD * num_threads
    query_start, seq_lens = step.query_start, step.seq_lens[: step.num_reqs]
    counts = np.diff(query_start)[: step.num_reqs]
    tile = int(np.clip(step.num_tokens // wanted, 4, a.MAX_TILE_TOKENS))
    split = np.iinfo(np.int32).max
    if step.num_reqs < wanted:
        share = -(-int(seq_lens.sum()) // wanted)
        split = max(_MIN_SPLIT, -(-share // block_size) * block_size)

    is_single = counts == 1
    pieces = np.where(is_single, -(-seq_lens // split), -(-counts // tile))
    rows = np.repeat(np.arange(step.num_reqs, dtype=np.int32), pieces)
    first_piece = np.cumsum(pieces) - pieces
    nth = np.arange(len(rows), dtype=np.int32) - first_piece[rows]

    single = is_single[rows]
    items = np.empty((len(rows), a.ITEM_FIELDS), dtype=np.int32)
    row, token, num_tokens, position, first, last, partial = items.T
    row[:] = rows
    token[:] = query_start[rows] + np.where(single, 0, nth * tile)
    num_tokens[:] = np.minimum(np.where(single, 1, tile), query_start[rows + 1] - token)
    position[:] = step.positions[token]
    first[:] = np.where(single, nth * split, 0)
    last[:] = position + num_tokens
    np.minimum(last, first + split, out=last, where=single)

    is_divided = is_single & (pieces > 1)
    divided = np.flatnonzero(is_divided)
    partial[:] = -1
    partial[is_divided[rows]] = np.arange(np.count_nonzero(is_divided[rows]), dtype=np.int32)
    merges = np.empty((len(divided), a.MERGE_FIELDS), dtype=np.int32)
    merges[:, 0] = query_start[divided]
    merges[:, 1] = np.cumsum(pieces[divided]) - pieces[divided]
    merges[:, 2] = pieces[divided]

    header = np.empty(a.PLAN_HEADER, dtype=np.int32)
    header[a.PLAN_NUM_ITEMS] = len(items)
    header[a.PLAN_NUM_MERGES] = len(merges)
    header[a.PLAN_IS_MIXED] = step.shape.kind is StepKind.MIXED
    header[a.PLAN_NUM_TOKENS] = step.num_tokens
    header[a.PLAN_PADDED_TOKENS] = step.shape.num_tokens
    return np.concatenate([header, items.ravel(), merges.ravel()])


def max_partials(num_threads: int) -> int:
    """Return the most partial results that a plan can have: the wanted items, one more per request."""
    return 2 * _ITEMS_PER_THREAD * num_threads
