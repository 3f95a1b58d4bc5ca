"""What must always hold of a block pool, whatever happened to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from core_engine.kv_cache.block_pool import NULL_BLOCK, BlockPool
from core_engine.kv_cache.manager import BlockTable


def assert_pool_is_sound(pool: BlockPool, tables: Iterable[BlockTable]) -> None:
    """``tables`` are all live tables."""
    free = list(pool._free)
    references: Counter[int] = Counter()
    for table in tables:
        assert table.num_held == sum(map(len, map(held, table.block_ids)))
        for row, num_null in zip(table.block_ids, table.num_null, strict=True):
            assert len(row) == len(table)
            assert row[:num_null] == [NULL_BLOCK] * num_null
            assert held(row) == row[num_null:]
            references.update(row[num_null:])
    assert len(free) == len(set(free)) == pool.num_free
    # Free, used and null blocks are all there are.
    assert sorted([*free, *references, NULL_BLOCK]) == list(range(pool.num_blocks))
    for block in range(pool.num_blocks):
        assert pool._references[block] == references[block]
        assert (pool._references[block] == 0) == (block in free or block == NULL_BLOCK)
        block_hash = pool._hash_of[block]
        if block_hash is not None:
            assert block in pool._blocks_of[block_hash]
    assert pool._hash_of[NULL_BLOCK] is None
    # No entry of the map is empty or leads to a block that holds something else.
    for block_hash, blocks in pool._blocks_of.items():
        assert blocks
        assert all(pool._hash_of[block] == block_hash for block in blocks)


def held(row: list[int]) -> list[int]:
    """The entries of a table's row that are real blocks."""
    return [block for block in row if block != NULL_BLOCK]
