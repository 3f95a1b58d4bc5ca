# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
# numba gives these functions their types.
"""Exponential and softmax over one row of scores, in float32, written so that LLVM vectorises them."""

from __future__ import annotations

import numpy as np
from numba import njit

from core_engine.backends.cpu.kernels.vector_ops import bits_float, float_bits

#: Stands for "no score yet". Finite: the sums below may not assume anything about infinities.
LOWEST = np.float32(-1e30)

_ZERO, _ONE, _TWO = np.float32(0.0), np.float32(1.0), np.float32(2.0)
_SMALLEST, _LARGEST = np.float32(-87.0), np.float32(88.0)
_LOG2_E = np.float32(1.4426950408889634)
#: Adding it rounds a small float32 to an integer, which then stands in the lowest bits.
_ROUND = np.float32(1.5 * 2**23)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
# The minimax polynomial of Cephes' expf: relative error below 2e-7 on [-ln 2 / 2, ln 2 / 2].
_P0, _P1, _P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_P3, _P4, _P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)

#: Sums may be reordered. NaN never stands in a score that is read; infinities are not assumed away.
_SUMS = {"reassoc", "nsz", "contract", "nnan"}


@njit(fastmath={"contract"}, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def exp(x):
    """Return e to the power of ``x``; below −87 about 1e-38."""
    x = min(max(x, _SMALLEST), _LARGEST)
    shifted = x * _LOG2_E + _ROUND
    power = shifted - _ROUND
    r = x - power * _LN2_HIGH - power * _LN2_LOW
    p = ((((_P0 * r + _P1) * r + _P2) * r + _P3) * r + _P4) * r + _P5
    p = p * r * r + r + _ONE
    return p * bits_float((float_bits(shifted) << np.int32(23)) + np.int32(0x3F800000))


@njit(fastmath=_SUMS, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def softmax_row(f, start, count, first, stop, scale, soft_cap, highest):
    """Turn the scores ``f[start : start + count]`` into weights, in place.

    Only positions ``first`` to ``stop`` of them are visible; the others get weight 0 whatever they
    hold. ``highest`` is the largest score so far. Returns (the new largest score, the sum of the
    weights); weights are relative to the new largest score.
    """
    if soft_cap > _ZERO:
        factor = _TWO * scale / soft_cap
        for j in range(start + first, start + stop):
            # tanh(x) = 1 − 2 / (exp(2x) + 1)
            f[j] = soft_cap - _TWO * soft_cap / (exp(f[j] * factor) + _ONE)
    else:
        for j in range(start + first, start + stop):
            f[j] *= scale
    for j in range(start + first, start + stop):
        highest = max(highest, f[j])
    total = _ZERO
    for j in range(start + first, start + stop):
        weight = exp(f[j] - highest)
        f[j] = weight
        total += weight
    for j in range(start, start + first):
        f[j] = _ZERO
    for j in range(start + stop, start + count):
        f[j] = _ZERO
    return highest, total
