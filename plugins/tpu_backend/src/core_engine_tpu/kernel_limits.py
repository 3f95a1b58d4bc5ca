"""What the ragged paged attention kernel can do, and how large its pieces are. Torch-free.

The limits are those of the kernel in torch_xla 2.9 (``ragged_paged_attention_v2``), found in its checks and
by compiling it for v5e and v6e with libtpu 0.0.21. The sizes of the pieces are unmeasured: they keep well
within a chip's memory and lie among those that the kernel's own table lists as fast.
"""

from __future__ import annotations

from dataclasses import dataclass

from core_engine.plugin import DTYPE_BYTES, next_power_of_two
from core_engine_tpu.kv_layout import LANES, SUBLANES, KVLayout, fills_tiles

__all__ = ["KernelBlocks", "head_refusal", "kernel_block_sizes", "kernel_blocks", "table_refusal"]

#: Data types that the kernel computes in.
DTYPES = ("bfloat16", "float32")
#: Of a TPU's 1 MiB of scalar memory, what the block table may take: lengths and spilled registers live
#: there too.
_SCALAR_MEMORY_BYTES = 768 << 10
#: What the kernel's buffers may take; less than the 16 MiB that the compiler grants a kernel by default.
_VECTOR_MEMORY_BYTES = 10 << 20
#: Positions that the kernel reads at a time.
_KEYS_AT_ONCE = 512
_QUERIES_AT_ONCE = 32
#: Every page of a piece is a copy of its own in the kernel's code.
_MOST_PAGES_AT_ONCE = 32
#: A request's pages are counted in scalar registers; the kernel's authors advise to stay near 16.
_PAGES_PER_REQUEST = 16
#: Larger blocks waste memory and find fewer common prefixes.
_LARGEST_PREFERRED = 128
_BLOCK_SIZES = (16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class KernelBlocks:
    """The pieces in which the kernel computes."""

    pages: int
    queries: int


def head_refusal(num_heads: int, num_kv_heads: int, layout: KVLayout) -> str | None:
    """Return why the kernel cannot serve these heads in ``layout``, or None; heads divide evenly."""
    if layout.dtype not in DTYPES:
        return f"the kernel computes in {' and '.join(DTYPES)}, not in {layout.dtype}"
    if layout.head_dim > LANES and (layout.num_kv_heads > 1 or layout.dtype != "bfloat16"):
        return (
            f"the kernel reads heads wider than {LANES} in bfloat16 with a single K/V head only; this layer "
            f"has {num_kv_heads} of {layout.head_dim} in {layout.dtype}"
        )
    padded_heads = num_heads // num_kv_heads * layout.num_kv_heads
    heads, _ = _heads_at_once(layout, padded_heads)
    if heads < padded_heads and heads % SUBLANES:
        return f"the kernel has no tiles for {num_heads} query and {num_kv_heads} K/V heads in {layout.dtype}"
    return None


def table_refusal(max_num_seqs: int, max_model_len: int, block_size: int) -> str | None:
    """Return why the block tables do not fit the scalar memory, or None."""
    if _table_bytes(max_num_seqs, max_model_len, block_size) <= _SCALAR_MEMORY_BYTES:
        return None
    width = -(-max_model_len // block_size)
    return (
        f"block tables of {max_num_seqs} requests with {width} blocks each take more than "
        f"{_SCALAR_MEMORY_BYTES >> 10} KiB of the TPU's scalar memory: lower max_num_seqs or max_model_len, "
        f"or raise block_size above {block_size}"
    )


def kernel_block_sizes(max_num_seqs: int, max_model_len: int) -> tuple[int, ...]:
    """Return the tokens that a block may hold, the preferred number first.

    Preferred is what makes the longest request about 16 blocks, from 16 to 128, or larger where the block
    tables would not fit the scalar memory.
    """
    wanted = next_power_of_two(max_model_len) // _PAGES_PER_REQUEST
    wanted = min(max(wanted, _BLOCK_SIZES[0]), _LARGEST_PREFERRED)
    fitting = [
        size
        for size in _BLOCK_SIZES
        if size >= wanted and table_refusal(max_num_seqs, max_model_len, size) is None
    ]
    preferred = fitting[0] if fitting else _BLOCK_SIZES[-1]
    return (preferred, *(size for size in _BLOCK_SIZES if size != preferred))


def kernel_blocks(
    layout: KVLayout, *, num_heads: int, num_tokens: int, block_size: int, pages_per_request: int
) -> KernelBlocks:
    """Return the pieces for a step of ``num_tokens``; ``num_heads`` counts padded query heads."""
    queries = min(_QUERIES_AT_ONCE, num_tokens)
    pages = min(max(1, _KEYS_AT_ONCE // block_size), _MOST_PAGES_AT_ONCE, pages_per_request)
    while pages > 1 and _vector_bytes(layout, num_heads, queries, pages * block_size) > _VECTOR_MEMORY_BYTES:
        pages //= 2
    return KernelBlocks(pages=pages, queries=queries)


def _table_bytes(max_num_seqs: int, max_model_len: int, block_size: int) -> int:
    width = -(-max_model_len // block_size)
    return 4 * (-(-max_num_seqs // 8) * 8) * (-(-width // LANES) * LANES)


def _vector_bytes(layout: KVLayout, num_heads: int, queries: int, keys: int) -> int:
    """Count two buffers each of pages, queries and outputs, and the running sums in float32."""
    itemsize = DTYPE_BYTES[layout.dtype]
    heads, kv_heads = _heads_at_once(layout, num_heads)
    pages = 2 * keys * 2 * kv_heads * layout.head_dim * itemsize
    rows = queries * heads
    return pages + rows * (4 * layout.head_dim * itemsize + 4 * layout.head_dim + 2 * 4 * LANES)


def _heads_at_once(layout: KVLayout, num_heads: int) -> tuple[int, int]:
    """Return the query and K/V heads that the kernel computes together: one tile's where they divide so."""
    packed = 4 // DTYPE_BYTES[layout.dtype]
    kv_heads = SUBLANES * packed // 2
    heads = num_heads // layout.num_kv_heads * kv_heads
    if layout.num_kv_heads % kv_heads or heads % packed or not fills_tiles(heads // packed):
        return num_heads, layout.num_kv_heads
    return heads, kv_heads
