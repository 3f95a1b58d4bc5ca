# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# Triton gives these functions their types.
"""Gumbel noise in Triton, bit-equal to that of core's CPU kernels on every device.

The random bits are those of `core_engine.sampling.torch_noise.noise_bits`. The logarithm is written out in
operations that IEEE 754 rounds in one way, as the CPU's kernels have it, rather than taken from the
device's library; kernels that use it are compiled with ``enable_fp_fusion=False``, so that no product and sum
become one operation with one rounding.
"""

from __future__ import annotations

import triton
import triton.language as tl

from core_engine.plugin.runtime import THREEFRY_PARITY

__all__ = ["MAX_NOISE", "gumbel", "neg_log"]

#: Noise never exceeds −log(−log(1 − 2⁻²⁴)) = 16.6355….
MAX_NOISE = tl.constexpr(16.64)
_PARITY = tl.constexpr(THREEFRY_PARITY)


@triton.jit
def _four_rounds(x0, x1, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr):
    x0 = x0 + x1
    x1 = ((x1 << A) | (x1 >> (32 - A))) ^ x0
    x0 = x0 + x1
    x1 = ((x1 << B) | (x1 >> (32 - B))) ^ x0
    x0 = x0 + x1
    x1 = ((x1 << C) | (x1 >> (32 - C))) ^ x0
    x0 = x0 + x1
    x1 = ((x1 << D) | (x1 >> (32 - D))) ^ x0
    return x0, x1


@triton.jit
def noise_bits(key0, key1, token_ids):
    """Return 24 random bits for each of ``token_ids``, int32; the key words are int32 scalars."""
    key0, key1 = key0.to(tl.uint32, bitcast=True), key1.to(tl.uint32, bitcast=True)
    key2 = key0 ^ key1 ^ _PARITY
    x0 = token_ids.to(tl.uint32) + key0
    x1 = tl.zeros_like(x0) + key1
    x0, x1 = _four_rounds(x0, x1, 13, 15, 26, 6)
    x0, x1 = x0 + key1, x1 + key2 + 1
    x0, x1 = _four_rounds(x0, x1, 17, 29, 16, 24)
    x0, x1 = x0 + key2, x1 + key0 + 2
    x0, x1 = _four_rounds(x0, x1, 13, 15, 26, 6)
    x0, x1 = x0 + key0, x1 + key1 + 3
    x0, x1 = _four_rounds(x0, x1, 17, 29, 16, 24)
    x0, x1 = x0 + key1, x1 + key2 + 4
    x0, x1 = _four_rounds(x0, x1, 13, 15, 26, 6)
    return ((x0 + key2) >> 8).to(tl.int32)


@triton.jit
def neg_log(x):
    """Return −log(x) of normal float32 ``x`` > 0, right to one unit in the last place.

    Its polynomial is the minimax polynomial of Cephes' logf.
    """
    bits = x.to(tl.int32, bitcast=True)
    exponent = ((bits >> 23) - 126).to(tl.float32)
    m = ((bits & 0x7FFFFF) | 0x3F000000).to(tl.float32, bitcast=True)
    is_small = m < 0.70710678
    exponent = tl.where(is_small, exponent - 1.0, exponent)
    m = tl.where(is_small, m + m - 1.0, m - 1.0)
    square = m * m
    p = 7.0376836292e-2 * m - 1.1514610310e-1
    p = p * m + 1.1676998740e-1
    p = p * m - 1.2420140846e-1
    p = p * m + 1.4249322787e-1
    p = p * m - 1.6668057665e-1
    p = p * m + 2.0000714765e-1
    p = p * m - 2.4999993993e-1
    p = p * m + 3.3333331174e-1
    p = p * m * square + exponent * -2.12194440e-4 - 0.5 * square
    return -(m + p + exponent * 0.693359375)


@triton.jit
def gumbel(key0, key1, token_ids):
    """Return Gumbel(0, 1) noise for each of ``token_ids``, float32; arguments as `noise_bits`."""
    bits = tl.maximum(noise_bits(key0, key1, token_ids), 1)
    return neg_log(neg_log(bits.to(tl.float32) * 5.9604644775390625e-8))
