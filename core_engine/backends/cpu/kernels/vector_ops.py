# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
# numba gives these functions their types.
"""Reads, writes and bit tricks that numba lacks, as intrinsics that emit LLVM code.

A *storage pointer*'s type names the format of what it points to: ``float32*`` holds float32,
``uint16*`` holds float16, and ``uint32*`` holds bfloat16, of which a matrix interleaves two rows so
that both are widened with one load. Element indices always count single numbers.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_FLOAT, _HALF = ir.FloatType(), ir.HalfType()
_INT16, _INT32, _INT64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)


@intrinsic
def typed_pointer(typingctx, address, dtype):
    """Return the int64 ``address`` as a pointer to the numba type ``dtype``."""
    pointer = types.CPointer(dtype.dtype)

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(pointer))

    return pointer(types.int64, dtype), codegen


@intrinsic
def moved(typingctx, pointer, count):
    """Return ``pointer`` moved by ``count`` of its elements."""

    def codegen(context, builder, signature, args):
        return builder.gep(args[0], [args[1]])

    return pointer(pointer, types.int64), codegen


@intrinsic
def load_element(typingctx, pointer, index):
    """Read the number at ``index`` of a storage pointer as float32."""

    def codegen(context, builder, signature, args):
        base, index = args
        if pointer.dtype == types.float32:
            return builder.load(builder.gep(base, [index]))
        bits = builder.load(builder.gep(builder.bitcast(base, _INT16.as_pointer()), [index]))
        if pointer.dtype == types.uint16:
            return builder.fpext(builder.bitcast(bits, _HALF), _FLOAT)
        return builder.bitcast(builder.shl(builder.zext(bits, _INT32), _INT32(16)), _FLOAT)

    return types.float32(pointer, types.int64), codegen


@intrinsic
def store_element(typingctx, pointer, index, number):
    """Round a float32 to the format of a storage pointer (ties to even) and write it at ``index``."""

    def codegen(context, builder, signature, args):
        base, index, number = args
        if pointer.dtype == types.float32:
            builder.store(number, builder.gep(base, [index]))
            return context.get_dummy_value()
        if pointer.dtype == types.uint16:
            bits = builder.bitcast(builder.fptrunc(number, _HALF), _INT16)
        else:
            wide = builder.bitcast(number, _INT32)
            odd = builder.and_(builder.lshr(wide, _INT32(16)), _INT32(1))
            rounded = builder.add(wide, builder.add(odd, _INT32(0x7FFF)))
            bits = builder.trunc(builder.lshr(rounded, _INT32(16)), _INT16)
        builder.store(bits, builder.gep(builder.bitcast(base, _INT16.as_pointer()), [index]))
        return context.get_dummy_value()

    return types.void(pointer, types.int64, types.float32), codegen


@intrinsic
def prefetch_page(typingctx, pointer, start, count):
    """Ask for ``count`` elements of ``pointer`` from ``start`` on, a cache line of 64 bytes at a time."""
    line = 64 // (pointer.dtype.bitwidth // 8)

    def codegen(context, builder, signature, args):
        base, start, count = args
        byte_pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte_pointer, _INT32, _INT32, _INT32])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        first = builder.gep(base, [start])
        with cgutils.for_range_slice(builder, _INT64(0), count, _INT64(line), inc=True) as (offset, _):
            place = builder.bitcast(builder.gep(first, [offset]), byte_pointer)
            builder.call(prefetch, [place, _INT32(0), _INT32(3), _INT32(1)])  # a read, to keep, of data
        return context.get_dummy_value()

    return types.void(pointer, types.int64, types.int64), codegen


@intrinsic
def float_bits(typingctx, number):
    """Return the bits of a float32 as int32."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], _INT32)

    return types.int32(types.float32), codegen


@intrinsic
def bits_float(typingctx, bits):
    """Return the float32 that has the bits of an int32."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], _FLOAT)

    return types.float32(types.int32), codegen


@intrinsic
def call_address(typingctx, function, stage, index, arguments):
    """Call the machine code at an address as ``void (int64, int64, int64)``."""
    size = types.int64

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(ir.VoidType(), [_INT64] * 3)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(size, size, size, size), codegen
