# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# Triton gives these functions their types.
"""Triton kernels that choose tokens: rows are split over programs, and what those find is put together.

`scan_rows` finds each split's most likely token, `draw_rows` each split's largest score, and `finish_rows`
takes a row's token from its splits. All leave float32 scores and int32 ids ``[R, num_splits]``, in which of
equal scores the lowest id counts. NaN counts as +inf in all of them: neither is a logit that gives a token.

Logits are float32 or bfloat16 ``[R, V]``. V and the distance of rows come in units of ``UNIT`` tokens, 16 or
1, because loads are wide only where the compiler sees that both are multiples. A split is ``split_blocks``
blocks of ``BLOCK`` tokens.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_engine_cuda.kernels.token_noise import MAX_NOISE, gumbel, neg_log

__all__ = [
    "MAX_SPLITS",
    "draw_rows",
    "finish_rows",
    "is_finite",
    "load_logits",
    "log_of_min_p",
    "row_best",
    "scan_rows",
]

MAX_SPLITS = tl.constexpr(64)
_NO_ID = tl.constexpr(0x7FFFFFFF)


@triton.jit
def load_logits(row, ids, stop):
    """Load the logits of ``ids``, float32: -inf from ``stop`` on, and NaN as +inf."""
    x = tl.load(row + ids, mask=ids < stop, other=float("-inf")).to(tl.float32)
    return tl.where(x != x, float("inf"), x)


@triton.jit
def is_finite(x):
    """Say whether ``x``, which is not NaN, is a number."""
    return (x > float("-inf")) & (x < float("inf"))


@triton.jit
def log_of_min_p(min_p):
    """Return min_p's logarithm; the clamp stands for "keep all"."""
    return -neg_log(tl.maximum(min_p, 1.2e-38))


@triton.jit
def best_of(scores, ids):
    """Return the largest of ``scores`` and the lowest of its ids."""
    best = tl.max(scores, 0)
    return best, tl.min(tl.where(scores == best, ids, _NO_ID), 0)


@triton.jit
def row_best(scores, ids, r, num_splits):
    """Return the largest score of row ``r`` in its splits, and its id."""
    splits = tl.arange(0, MAX_SPLITS)
    is_split = splits < num_splits
    some = tl.load(scores + r * num_splits + splits, mask=is_split, other=float("-inf"))
    return best_of(some, tl.load(ids + r * num_splits + splits, mask=is_split, other=_NO_ID))


@triton.jit(
    do_not_specialize=["row_units", "vocab_units", "num_splits", "split_blocks"],
    do_not_specialize_on_alignment=["scores", "ids"],
)
def scan_rows(
    logits,
    scores,
    ids,
    row_units,
    vocab_units,
    num_splits,
    split_blocks,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Find the largest logit and its id in each split of each row; grid ``(R, num_splits)``."""
    r, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = logits + r * row_units * UNIT
    start = split * split_blocks * BLOCK
    stop = tl.minimum(start + split_blocks * BLOCK, vocab_units * UNIT)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_ids = start + tl.arange(0, BLOCK)
    for first in range(start, stop, BLOCK):
        block_ids = first + tl.arange(0, BLOCK)
        x = load_logits(row, block_ids, stop)
        is_better = x > best
        best = tl.where(is_better, x, best)
        best_ids = tl.where(is_better, block_ids, best_ids)
    top, top_id = best_of(best, best_ids)
    tl.store(scores + r * num_splits + split, top)
    tl.store(ids + r * num_splits + split, top_id)


@triton.jit(
    do_not_specialize=["row_units", "vocab_units", "num_splits", "split_blocks"],
    do_not_specialize_on_alignment=[
        "top_scores",
        "top_ids",
        "temperature",
        "min_p",
        "noise_keys",
        "limits",
        "limit_ids",
        "scores",
        "ids",
    ],
)
def draw_rows(
    logits,
    top_scores,
    top_ids,
    temperature,
    min_p,
    noise_keys,
    limits,
    limit_ids,
    scores,
    ids,
    row_units,
    vocab_units,
    num_splits,
    split_blocks,
    FILTERS: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Find the largest logit + temperature · noise in each split of each row; grid ``(R, num_splits)``.

    ``top_scores`` and ``top_ids`` are what `scan_rows` found. With ``FILTERS`` only tokens that min_p and the
    limits (`core_engine_cuda.kernels.token_filters`) keep are considered.
    """
    r, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    largest, best_id = row_best(top_scores, top_ids, r, num_splits)
    best = largest
    heat = tl.load(temperature + r)
    if (heat > 0) & is_finite(largest):
        row = logits + r * row_units * UNIT
        key0, key1 = tl.load(noise_keys + 2 * r), tl.load(noise_keys + 2 * r + 1)
        # The most likely token passes every filter, and few others reach its score.
        one_id = best_id + tl.zeros([1], tl.int32)
        best = tl.max(largest + heat * gumbel(key0, key1, one_id), 0)
        if FILTERS:
            limit, limit_id = tl.load(limits + r), tl.load(limit_ids + r)
            log_min_p = log_of_min_p(tl.load(min_p + r))
        start = split * split_blocks * BLOCK
        stop = tl.minimum(start + split_blocks * BLOCK, vocab_units * UNIT)
        for first in range(start, stop, BLOCK):
            block_ids = first + tl.arange(0, BLOCK)
            x = load_logits(row, block_ids, stop)
            if FILTERS:
                is_kept = (x > limit) | ((x == limit) & (block_ids <= limit_id))
                is_kept = is_kept & (tl.div_rn(x - largest, heat) >= log_min_p)
                x = tl.where(is_kept, x, float("-inf"))
            # Rounding is monotone, so a block whose bound is less has no token that wins or ties.
            if tl.max(x, 0) + heat * MAX_NOISE >= best:
                block_best, block_id = best_of(x + heat * gumbel(key0, key1, block_ids), block_ids)
                if (block_best > best) | ((block_best == best) & (block_id < best_id)):
                    best = block_best
                    best_id = block_id
    tl.store(scores + r * num_splits + split, best)
    tl.store(ids + r * num_splits + split, best_id)


@triton.jit(
    do_not_specialize=["num_splits"],
    do_not_specialize_on_alignment=["scores", "ids", "token_ids"],
)
def finish_rows(scores, ids, token_ids, num_splits):
    """Write each row's token, -1 where its best score is not finite; grid ``(R,)``."""
    r = tl.program_id(0).to(tl.int64)
    best, best_id = row_best(scores, ids, r, num_splits)
    tl.store(token_ids + r, tl.where(is_finite(best), best_id, -1))
