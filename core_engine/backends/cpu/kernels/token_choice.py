# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
# numba gives these functions their types.
"""Numba kernels that choose tokens: a row is one core's work, noise is made only where it can matter.

Logits are read as they are: float32, or bfloat16 as its uint16 bits. A row is scanned in chunks that
stay in the first-level cache; loops are written so that they vectorise. Importing this module compiles
``choose_rows``, or loads it from numba's cache on disk.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from core_engine.backends.cpu.kernels.logarithm import neg_log, widened
from core_engine.backends.cpu.kernels.token_filters import CHUNK, find_limit
from core_engine.backends.cpu.kernels.vector_ops import float_bits
from core_engine.plugin.runtime import THREEFRY_PARITY

#: Noise never exceeds −log(−log(1 − 2⁻²⁴)) = 16.6355….
_MAX_NOISE = np.float32(16.64)
#: More than the computed noise may rise where its bits fall.
_SLACK = np.float32(1e-4)
_NO_LIMIT = np.float32(-np.inf)
_INFINITY, _INFINITY_BITS = np.float32(np.inf), np.int32(0x7F800000)
_PARITY = np.uint32(THREEFRY_PARITY)
#: NaN and the sign of zero may come out as the processor likes; sums and products stay as written.
_INNER = {"fastmath": {"nnan", "nsz"}, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_u32 = np.uint32
_f32 = np.float32


@njit(**_INNER)
def _mix(x0, x1, distance):
    x0 = _u32(x0 + x1)
    return x0, _u32((x1 << _u32(distance)) | (x1 >> _u32(32 - distance))) ^ x0


@njit(**_INNER)
def _noise_bits(key0, key1, token_id):
    """Return the 24 bits of `core_engine.sampling.torch_noise.noise_bits`; all words are uint32."""
    key2 = _u32(key0 ^ key1 ^ _PARITY)
    x0, x1 = _u32(token_id + key0), key1
    x0, x1 = _mix(x0, x1, 13)
    x0, x1 = _mix(x0, x1, 15)
    x0, x1 = _mix(x0, x1, 26)
    x0, x1 = _mix(x0, x1, 6)
    x0, x1 = _u32(x0 + key1), _u32(x1 + key2 + _u32(1))
    x0, x1 = _mix(x0, x1, 17)
    x0, x1 = _mix(x0, x1, 29)
    x0, x1 = _mix(x0, x1, 16)
    x0, x1 = _mix(x0, x1, 24)
    x0, x1 = _u32(x0 + key2), _u32(x1 + key0 + _u32(2))
    x0, x1 = _mix(x0, x1, 13)
    x0, x1 = _mix(x0, x1, 15)
    x0, x1 = _mix(x0, x1, 26)
    x0, x1 = _mix(x0, x1, 6)
    x0, x1 = _u32(x0 + key0), _u32(x1 + key1 + _u32(3))
    x0, x1 = _mix(x0, x1, 17)
    x0, x1 = _mix(x0, x1, 29)
    x0, x1 = _mix(x0, x1, 16)
    x0, x1 = _mix(x0, x1, 24)
    x0, x1 = _u32(x0 + key1), _u32(x1 + key2 + _u32(4))
    x0, x1 = _mix(x0, x1, 13)
    x0, x1 = _mix(x0, x1, 15)
    x0, x1 = _mix(x0, x1, 26)
    x0, x1 = _mix(x0, x1, 6)
    return _u32(x0 + key2) >> _u32(8)


@njit(**_INNER)
def _chunk_max(row, start, stop):
    best = _NO_LIMIT
    for i in range(start, stop):
        value = widened(row[i])
        best = value if value > best else best
    return best


@njit(**_INNER)
def _largest_bits(row):
    """Return the largest of a row's logits as bits without their sign: NaN counts beyond infinity.

    What the other functions make of a NaN is undefined, and this one compares integers.
    """
    most = np.int32(0)
    for i in range(len(row)):
        most = max(most, np.int32(float_bits(widened(row[i])) & np.int32(0x7FFFFFFF)))
    return most


@njit(**_INNER)
def _row_argmax(row, chunk_max):
    """Fill ``chunk_max`` and return the lowest id of the largest logit and that logit."""
    best, best_chunk = _NO_LIMIT, 0
    for c in range(len(chunk_max)):
        chunk_max[c] = _chunk_max(row, c * CHUNK, min((c + 1) * CHUNK, len(row)))
        if chunk_max[c] > best:
            best, best_chunk = chunk_max[c], c
    for i in range(best_chunk * CHUNK, min((best_chunk + 1) * CHUNK, len(row))):
        if widened(row[i]) == best:
            return i, best
    return 0, best


@njit(**_INNER)
def _widen(row, wide):
    for i in range(len(row)):
        wide[i] = widened(row[i])


@njit(**_INNER)
def _make_bits(start, key0, key1, bits):
    """Write the noise bits of the tokens from ``start`` on and return the largest."""
    most = _u32(1)
    for i in range(len(bits)):
        bits[i] = max(_noise_bits(key0, key1, _u32(start + i)), _u32(1))
        most = max(most, bits[i])
    return most


@njit(**_INNER)
def _gumbel(bits):
    return neg_log(neg_log(_f32(np.int32(bits)) * _f32(2**-24)))


@njit(**_INNER)
def _score(row, start, stop, temperature, bits, scores):
    """Write logit + temperature · noise of the tokens in [start, stop)."""
    for i in range(stop - start):
        scores[i] = row[start + i] + temperature * _gumbel(bits[i])


@njit(**_INNER)
def _drop_below(row, start, stop, limit, limit_id, scores):
    """Forbid the tokens that come after (``limit``, ``limit_id``) in the filters' order."""
    for i in range(stop - start):
        value = row[start + i]
        kept = value > limit or (value == limit and start + i <= limit_id)
        scores[i] = scores[i] if kept else _NO_LIMIT


@njit(**_INNER)
def _draw(row, chunk_max, top_id, temperature, key0, key1, limit, limit_id):
    """Return the token of the largest score among those that the limit keeps; ``top_id`` is always kept."""
    bits, scores = np.empty(CHUNK, dtype=np.uint32), np.empty(CHUNK, dtype=np.float32)
    _make_bits(top_id, key0, key1, bits[:1])
    _score(row, top_id, top_id + 1, temperature, bits, scores)
    best, best_id = scores[0], top_id
    for c in range(len(chunk_max)):
        # Most chunks cannot win: not with the largest noise there is, or not with the largest they have.
        if chunk_max[c] < limit or chunk_max[c] + temperature * _MAX_NOISE < best:
            continue
        start, stop = c * CHUNK, min((c + 1) * CHUNK, len(row))
        most = _make_bits(start, key0, key1, bits)
        if chunk_max[c] + temperature * (_gumbel(most) + _SLACK) < best:
            continue
        _score(row, start, stop, temperature, bits, scores)
        if limit > _NO_LIMIT:
            _drop_below(row, start, stop, limit, limit_id, scores)
        if _chunk_max(scores, 0, stop - start) < best:
            continue
        for i in range(stop - start):
            if scores[i] > best or (scores[i] == best and start + i < best_id):
                best, best_id = scores[i], start + i
    return best_id


@njit(**_INNER)
def _choose(logits, temperature, top_k, top_p, min_p, key0, key1):
    """Return one row's token, -1 where it has none to give."""
    if _largest_bits(logits) > _INFINITY_BITS:
        return -1
    vocab_size = len(logits)
    chunk_max = np.empty((vocab_size + CHUNK - 1) // CHUNK, dtype=np.float32)
    top_id, largest = _row_argmax(logits, chunk_max)
    if not _NO_LIMIT < largest < _INFINITY:
        return -1
    if temperature == 0:
        return top_id
    row = np.empty(vocab_size, dtype=np.float32)
    _widen(logits, row)
    limit, limit_id = _NO_LIMIT, vocab_size
    if top_k < vocab_size or top_p < 1 or min_p > 0:
        limit, limit_id = find_limit(row, chunk_max, largest, temperature, top_k, top_p, min_p)
    return _draw(row, chunk_max, top_id, temperature, key0, key1, limit, limit_id)


@njit(
    "void(uint16[:, ::1], boolean, float32[::1], int32[::1], float32[::1], float32[::1], uint32[:, ::1], "
    "int32[::1])",
    parallel=True,
    cache=True,
)
def choose_rows(logits, are_float32, temperature, top_k, top_p, min_p, noise_keys, token_ids):
    """Write each row's token to ``token_ids``; -1 where a row has NaN or its largest logit is not finite.

    ``logits`` are bfloat16 by their bits, or float32 where ``are_float32``, each then two columns; the
    other arguments are those of `HostSampling`.
    """
    for r in prange(logits.shape[0]):
        key0, key1 = noise_keys[r, 0], noise_keys[r, 1]
        if are_float32:
            row = logits[r].view(np.float32)
            token_ids[r] = _choose(row, temperature[r], top_k[r], top_p[r], min_p[r], key0, key1)
        else:
            token_ids[r] = _choose(logits[r], temperature[r], top_k[r], top_p[r], min_p[r], key0, key1)
