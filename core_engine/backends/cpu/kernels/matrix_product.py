# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
# numba gives these functions their types.
"""C += A · B for small row-major matrices, with the results of a tile held in vector registers.

A and C are float32; B is in a storage format (see `vector_ops`) and is widened as it is loaded.
Tiles of R × V · 16 results walk down the whole depth, so each number of B is loaded and widened once
per R rows. LLVM splits the 16-lane vectors where the CPU's are shorter.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
#: Rows, and vectors of columns, of the tiles; the later ones take what the earlier ones leave over.
_TILE_ROWS = (6, 3, 2, 1)
_TILE_VECTORS = (2, 1)

_INT32 = ir.IntType(32)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_INTS = ir.VectorType(_INT32, LANES)
_HALVES = ir.VectorType(ir.HalfType(), LANES)


@intrinsic
def add_product(typingctx, a, a_start, lda, b, b_start, ldb, c, c_start, ldc, rows, columns, depth):
    """Add A ``[rows, depth]`` · B ``[depth, columns]`` to C ``[rows, columns]``.

    ``columns`` is a multiple of 16. Starts and row strides count elements of their pointers; for
    interleaved bfloat16 that is pairs, and row i of the pairs holds rows 2i and 2i + 1 of B. Nothing
    beyond ``depth`` enters the sums: the other half of a last pair may hold anything.
    """

    def codegen(context, builder, signature, args):
        _emit_product(builder, b.dtype, *args)
        return context.get_dummy_value()

    size = types.int64
    return types.void(a, size, size, b, size, size, c, size, size, size, size, size), codegen


def _emit_product(builder, storage, a, a_start, lda, b, b_start, ldb, c, c_start, ldc, rows, columns, depth):
    """Emit the loops over tiles."""
    size = rows.type
    a, b, c = builder.gep(a, [a_start]), builder.gep(b, [b_start]), builder.gep(c, [c_start])

    def ranges(total, widths):
        """Yield (start, stop, width): each width takes as many whole steps as are left."""
        start = size(0)
        for width in widths:
            stop = builder.sub(total, builder.srem(builder.sub(total, start), size(width)))
            yield start, stop, width
            start = stop

    for row_start, row_stop, num_rows in ranges(rows, _TILE_ROWS):
        with cgutils.for_range_slice(builder, row_start, row_stop, size(num_rows), inc=True) as (row, _):
            a_rows = [builder.gep(a, [builder.mul(builder.add(row, size(i)), lda)]) for i in range(num_rows)]
            c_rows = [builder.gep(c, [builder.mul(builder.add(row, size(i)), ldc)]) for i in range(num_rows)]
            for start, stop, width in ranges(columns, [LANES * vectors for vectors in _TILE_VECTORS]):
                with cgutils.for_range_slice(builder, start, stop, size(width), inc=True) as (column, _):
                    b_columns = builder.gep(b, [column])
                    c_tile = [builder.gep(c_row, [column]) for c_row in c_rows]
                    _emit_tile(builder, storage, a_rows, b_columns, ldb, c_tile, depth, width // LANES)


def _emit_tile(builder, storage, a_rows, b, ldb, c_rows, depth, num_vectors):
    """Emit one tile: load the results, walk down the depth, store the results."""
    size = depth.type
    fma_type = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
    fma = cgutils.get_or_insert_function(builder.module, fma_type, f"llvm.fma.v{LANES}f32")
    vectors = range(num_vectors)
    targets = [
        builder.bitcast(builder.gep(c_row, [size(vector * LANES)]), _FLOATS.as_pointer())
        for c_row in c_rows
        for vector in vectors
    ]
    sums = [builder.load(target, align=4) for target in targets]
    interleaved = 2 if storage == types.uint32 else 1

    def step(sums, k, num_rows_of_b):
        """Return the sums plus what ``num_rows_of_b`` rows of B from row ``k`` on contribute."""
        b_row = builder.gep(b, [builder.mul(builder.sdiv(k, size(interleaved)), ldb)])
        widened = [_emit_widened(builder, storage, builder.gep(b_row, [size(v * LANES)])) for v in vectors]
        sums = list(sums)
        for nth in range(num_rows_of_b):
            for i, a_row in enumerate(a_rows):
                factor = _emit_splat(builder, builder.load(builder.gep(a_row, [builder.add(k, size(nth))])))
                for vector in vectors:
                    place = i * num_vectors + vector
                    sums[place] = builder.call(fma, [factor, widened[vector][nth], sums[place]])
        return sums

    whole = builder.sub(depth, builder.srem(depth, size(interleaved)))
    sums = _emit_loop(builder, whole, interleaved, sums, lambda sums, k: step(sums, k, interleaved))
    if interleaved > 1:
        # At most one step: the first half of a last pair.
        rest = builder.sub(depth, whole)
        sums = _emit_loop(builder, rest, 1, sums, lambda sums, _: step(sums, whole, 1))
    for target, value in zip(targets, sums, strict=True):
        builder.store(value, target, align=4)


def _emit_loop(builder, stop, width, values, body):
    """Emit ``for k in range(0, stop, width): values = body(values, k)`` with the values in registers."""
    size = stop.type
    entry = builder.block
    head, inner, after = (builder.append_basic_block(name) for name in ("head", "inner", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    k = builder.phi(size)
    k.add_incoming(size(0), entry)
    carried = [builder.phi(value.type) for value in values]
    for phi, value in zip(carried, values, strict=True):
        phi.add_incoming(value, entry)
    builder.cbranch(builder.icmp_signed("<", k, stop), inner, after)
    builder.position_at_end(inner)
    updated = body(carried, k)
    k.add_incoming(builder.add(k, size(width)), builder.block)
    for phi, value in zip(carried, updated, strict=True):
        phi.add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return carried


def _emit_widened(builder, storage, pointer):
    """Load 16 stored elements and return their float32 vectors: two for interleaved rows, else one."""
    if storage == types.float32:
        return [builder.load(builder.bitcast(pointer, _FLOATS.as_pointer()), align=4)]
    if storage == types.uint16:
        return [builder.fpext(builder.load(builder.bitcast(pointer, _HALVES.as_pointer()), align=2), _FLOATS)]
    pairs = builder.load(builder.bitcast(pointer, _INTS.as_pointer()), align=4)
    low = builder.shl(pairs, _INTS([16] * LANES))
    high = builder.and_(pairs, _INTS([0xFFFF0000] * LANES))
    return [builder.bitcast(low, _FLOATS), builder.bitcast(high, _FLOATS)]


def _emit_splat(builder, number):
    """Return a vector of 16 times ``number``."""
    undefined = ir.Constant(_FLOATS, ir.Undefined)
    single = builder.insert_element(undefined, number, _INT32(0))
    return builder.shuffle_vector(single, undefined, ir.Constant(_INTS, [0] * LANES))
