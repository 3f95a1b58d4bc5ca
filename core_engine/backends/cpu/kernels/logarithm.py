# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
# numba gives these functions their types.
"""Logits as they are stored to float32, and the logarithm of Gumbel noise, so that LLVM vectorises both."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from core_engine.backends.cpu.kernels.vector_ops import bits_float, float_bits

_ONE, _HALF = np.float32(1.0), np.float32(0.5)
_SQRT_HALF = np.float32(0.70710678)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
# The minimax polynomial of Cephes' logf.
_P0, _P1, _P2 = np.float32(7.0376836292e-2), np.float32(-1.1514610310e-1), np.float32(1.1676998740e-1)
_P3, _P4, _P5 = np.float32(-1.2420140846e-1), np.float32(1.4249322787e-1), np.float32(-1.6668057665e-1)
_P6, _P7, _P8 = np.float32(2.0000714765e-1), np.float32(-2.4999993993e-1), np.float32(3.3333331174e-1)


@intrinsic
def widened(typingctx, number):
    """Return a float32 as it is, and a bfloat16, given by its bits as uint16, as float32."""
    if number not in (types.float32, types.uint16):
        return None

    def codegen(context, builder, signature, args):
        if number == types.float32:
            return args[0]
        wide = builder.zext(args[0], ir.IntType(32))
        return builder.bitcast(builder.shl(wide, ir.IntType(32)(16)), ir.FloatType())

    return types.float32(number), codegen


@njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def neg_log(x):
    """Return −log(x) of a normal float32 x > 0, right to one unit in the last place.

    Nothing is fused or reordered: every processor computes the same bits.
    """
    bits = float_bits(x)
    exponent = np.float32(np.int32((bits >> 23) - 126))
    m = bits_float(np.int32((bits & 0x7FFFFF) | 0x3F000000))
    is_small = m < _SQRT_HALF
    exponent = exponent - _ONE if is_small else exponent
    m = m + m - _ONE if is_small else m - _ONE
    square = m * m
    p = (((((((_P0 * m + _P1) * m + _P2) * m + _P3) * m + _P4) * m + _P5) * m + _P6) * m + _P7) * m + _P8
    p = p * m * square + exponent * _LN2_LOW - _HALF * square
    return -(m + p + exponent * _LN2_HIGH)
