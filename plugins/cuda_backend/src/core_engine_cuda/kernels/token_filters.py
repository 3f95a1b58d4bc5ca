# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# Triton gives these functions their types.
"""Triton kernels for top_k and top_p without sorting a row.

In the filters' order (larger logit first, then lower id) what they keep is always a beginning of the row, so
one pair of logit and id, the last that is kept, says it all. `gather_candidates` collects the logits that
can matter, and `find_limits` searches among them.

Probabilities are summed as integers: a token's weight is exp((logit − largest) / temperature) in units of
2⁻⁴⁰. Such sums do not depend on their order, and so neither on the splits nor on the batch. A token whose
weight is 0 lies 27 temperatures below the largest logit, from where no noise (−2.82 to 16.64) lifts it to the
top. Arguments that are not told of are those of `core_engine_cuda.kernels.token_choice`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_engine_cuda.kernels.token_choice import is_finite, load_logits, log_of_min_p, row_best

__all__ = ["find_limits", "gather_candidates"]

_UNITS = tl.constexpr(2.0**40)
#: The distance, in temperatures, from which on a weight is 0 units, and a margin for its rounding.
_FAR = tl.constexpr(28.0)


@triton.jit
def _weights(x, largest, heat, log_min_p):
    """Return the weights of logits ``x`` in units of 2⁻⁴⁰, int64; 0 for those that min_p drops."""
    distance = tl.div_rn(x - largest, heat)
    return tl.where(distance >= log_min_p, (tl.exp(distance) * _UNITS).to(tl.int64), 0)


@triton.jit
def _keys(x, SHIFT: tl.constexpr):
    """Map float32 to int32 of the same order; ``SHIFT`` 16 leaves the bits that a bfloat16 has."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits) >> SHIFT


@triton.jit
def _logit_of(key, SHIFT: tl.constexpr):
    """Return the float32 that `_keys` maps to ``key``."""
    bits = key << SHIFT
    bits = tl.where(bits < 0, (bits | ((1 << SHIFT) - 1)) ^ 0x7FFFFFFF, bits)
    return bits.to(tl.float32, bitcast=True)


@triton.jit(
    do_not_specialize=["row_units", "vocab_units", "num_splits", "split_blocks"],
    do_not_specialize_on_alignment=["top_scores", "top_ids", "temperature", "min_p", "num_candidates"],
)
def gather_candidates(
    logits,
    top_scores,
    top_ids,
    temperature,
    min_p,
    candidates,
    num_candidates,
    row_units,
    vocab_units,
    num_splits,
    split_blocks,
    CAPACITY: tl.constexpr,
    UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Collect each row's logits of some weight in ``candidates`` ``[R, CAPACITY]``; grid ``(R, num_splits)``.

    Their order is left to chance. ``num_candidates``, int32 ``[R]`` and 0 before, tells their number even
    where it exceeds the capacity.
    """
    r, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    largest, _top_id = row_best(top_scores, top_ids, r, num_splits)
    heat = tl.load(temperature + r)
    if (heat > 0) & is_finite(largest):
        row = logits + r * row_units * UNIT
        log_min_p = log_of_min_p(tl.load(min_p + r))
        start = split * split_blocks * BLOCK
        stop = tl.minimum(start + split_blocks * BLOCK, vocab_units * UNIT)
        for first in range(start, stop, BLOCK):
            ids = first + tl.arange(0, BLOCK)
            x = load_logits(row, ids, stop)
            is_candidate = (_weights(x, largest, heat, log_min_p) > 0).to(tl.int32)
            count = tl.sum(is_candidate, 0)
            if count > 0:
                place = tl.atomic_add(num_candidates + r, count)
                places = place + tl.cumsum(is_candidate, 0) - 1
                mask = (is_candidate > 0) & (places < CAPACITY)
                value = x.to(candidates.dtype.element_ty)
                tl.store(candidates + r * CAPACITY + places, value, mask=mask)


@triton.jit
def _sums_from(
    source,
    size,
    largest,
    heat,
    log_min_p,
    t1,
    t2,
    t3,
    WEIGHED: tl.constexpr,
    SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the weight of the tokens whose key reaches each threshold, or without ``WEIGHED`` their number.

    All three are int64 scalars.
    """
    s1 = tl.zeros([BLOCK], tl.int64)
    s2 = tl.zeros([BLOCK], tl.int64)
    s3 = tl.zeros([BLOCK], tl.int64)
    for first in range(0, size, BLOCK):
        x = load_logits(source, first + tl.arange(0, BLOCK), size)
        weights = _weights(x, largest, heat, log_min_p)
        if not WEIGHED:
            weights = (weights > 0).to(tl.int64)
        keys = _keys(x, SHIFT)
        s1 += tl.where(keys >= t1, weights, 0)
        s2 += tl.where(keys >= t2, weights, 0)
        s3 += tl.where(keys >= t3, weights, 0)
    return tl.sum(s1, 0), tl.sum(s2, 0), tl.sum(s3, 0)


@triton.jit
def _search(
    source,
    size,
    largest,
    heat,
    log_min_p,
    low,
    high,
    target,
    WEIGHED: tl.constexpr,
    SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the largest key in [low, high] from which on the sum reaches ``target``; at ``low`` it does."""
    while low < high:
        step = (high - low + 3) // 4
        t1 = low + step
        t2 = tl.minimum(t1 + step, high)
        t3 = tl.minimum(t2 + step, high)
        s1, s2, s3 = _sums_from(
            source,
            size,
            largest,
            heat,
            log_min_p,
            t1.to(tl.int32),
            t2.to(tl.int32),
            t3.to(tl.int32),
            WEIGHED,
            SHIFT,
            BLOCK,
        )
        high = tl.where(
            s1 < target, t1 - 1, tl.where(s2 < target, t2 - 1, tl.where(s3 < target, t3 - 1, high))
        )
        low = tl.where(s3 >= target, t3, tl.where(s2 >= target, t2, tl.where(s1 >= target, t1, low)))
    return low


@triton.jit
def _nth_of_equals(row, vocab_size, limit, n, BLOCK: tl.constexpr):
    """Return the id of the ``n``-th token whose logit is ``limit``; ``vocab_size`` where there are fewer."""
    found = vocab_size
    first = vocab_size * 0
    seen = n * 0
    while (first < vocab_size) & (seen < n):
        ids = first + tl.arange(0, BLOCK)
        is_equal = ((load_logits(row, ids, vocab_size) == limit) & (ids < vocab_size)).to(tl.int64)
        is_nth = (is_equal > 0) & (seen + tl.cumsum(is_equal, 0) == n)
        found = tl.minimum(found, tl.min(tl.where(is_nth, ids, vocab_size), 0))
        seen += tl.sum(is_equal, 0)
        first += BLOCK
    return found


@triton.jit(
    do_not_specialize=["row_stride", "vocab_size", "num_splits"],
    do_not_specialize_on_alignment=[
        "top_scores",
        "top_ids",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "num_candidates",
        "limits",
        "limit_ids",
    ],
)
def find_limits(
    logits,
    top_scores,
    top_ids,
    temperature,
    top_k,
    top_p,
    min_p,
    candidates,
    num_candidates,
    limits,
    limit_ids,
    row_stride,
    vocab_size,
    num_splits,
    CAPACITY: tl.constexpr,
    SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write logit and id of the last token that top_k and top_p keep of what min_p left; grid ``(R,)``.

    ``limits`` is float32 ``[R]``, -inf where nothing is cut; ``limit_ids`` is int32 ``[R]``. A row whose
    candidates exceed their capacity is searched itself.
    """
    r = tl.program_id(0).to(tl.int64)
    largest, _top_id = row_best(top_scores, top_ids, r, num_splits)
    heat, k, share = tl.load(temperature + r), tl.load(top_k + r), tl.load(top_p + r)
    count = tl.load(num_candidates + r)
    row = logits + r * row_stride
    limit = float("-inf")
    limit_id = vocab_size
    is_cut = k < count
    if (count > 0) & (is_cut | (share < 1)):
        log_min_p = log_of_min_p(tl.load(min_p + r))
        is_gathered = count <= CAPACITY
        source = tl.where(is_gathered, candidates + r * CAPACITY, row)
        size = tl.where(is_gathered, count, vocab_size)
        low = _keys(largest - _FAR * heat, SHIFT).to(tl.int64)
        high = _keys(largest, SHIFT).to(tl.int64)
        num_equal = k.to(tl.int64)  # how many tokens of the limit's own logit are kept
        if is_cut:
            low = _search(source, size, largest, heat, log_min_p, low, high, k, False, SHIFT, BLOCK)
            at = low.to(tl.int32)
            _count, above, _same = _sums_from(
                source, size, largest, heat, log_min_p, at, at + 1, at + 1, False, SHIFT, BLOCK
            )
            num_equal = k - above
        if share < 1:
            at = low.to(tl.int32)
            total, above, _same = _sums_from(
                source, size, largest, heat, log_min_p, at, at + 1, at + 1, True, SHIFT, BLOCK
            )
            if is_cut:
                total = above + num_equal * _weights(_logit_of(at, SHIFT), largest, heat, log_min_p)
            # As the reference rounds it, but never more than there is nor nothing.
            target = tl.minimum(tl.maximum((share * total.to(tl.float32)).to(tl.int64), 1), total)
            low = _search(source, size, largest, heat, log_min_p, low, high, target, True, SHIFT, BLOCK)
            at = low.to(tl.int32)
            _count, above, _same = _sums_from(
                source, size, largest, heat, log_min_p, at, at + 1, at + 1, True, SHIFT, BLOCK
            )
            weight = _weights(_logit_of(at, SHIFT), largest, heat, log_min_p)
            num_equal = (target - above + weight - 1) // weight
        limit = _logit_of(low.to(tl.int32), SHIFT)
        limit_id = _nth_of_equals(row, vocab_size, limit, num_equal, BLOCK)
    tl.store(limits + r, limit)
    tl.store(limit_ids + r, limit_id)
