from __future__ import annotations

import pytest

from core_engine.kv_cache.block_pool import NULL_BLOCK, BlockPool


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(5)


def test_the_null_block_is_never_given_out(pool: BlockPool) -> None:
    assert pool.num_usable == pool.num_free == 4
    assert NULL_BLOCK not in pool.allocate(4)


def test_a_block_with_two_references_is_free_after_two_releases(pool: BlockPool) -> None:
    block = pool.allocate(1)
    pool.acquire(block)

    pool.release(block)
    assert pool.num_free == 3

    pool.release(block)
    assert pool.num_free == 4


def test_a_freed_block_keeps_its_prefix_until_it_is_reused(pool: BlockPool) -> None:
    (block,) = pool.allocate(1)
    pool.set_hash(block, b"prefix")
    pool.release([block])

    assert pool.find(b"prefix") == block


def test_a_hit_takes_a_free_block_out_of_the_middle_of_the_free_list(pool: BlockPool) -> None:
    first, second, third = pool.allocate(3)
    pool.set_hash(second, b"prefix")
    pool.release([first, second, third])

    pool.acquire([second])

    assert pool.num_free == 3
    assert second not in pool.allocate(3)


def test_case_16_eviction_removes_the_map_entry(pool: BlockPool) -> None:
    blocks = pool.allocate(4)
    pool.set_hash(blocks[0], b"prefix")
    pool.release(blocks)

    pool.allocate(4)

    assert pool.find(b"prefix") is None


def test_case_16_a_tail_that_is_released_first_is_evicted_first(pool: BlockPool) -> None:
    head, tail = pool.allocate(2)
    pool.set_hash(head, b"head")
    pool.set_hash(tail, b"tail")
    pool.release([tail, head])

    pool.allocate(3)  # two that were never used, then the tail

    assert pool.find(b"tail") is None
    assert pool.find(b"head") == head


def test_several_blocks_may_hold_one_prefix(pool: BlockPool) -> None:
    one, other = pool.allocate(2)
    pool.set_hash(one, b"prefix")
    pool.set_hash(other, b"prefix")
    pool.release([one])

    assert one in pool.allocate(3)  # evicts one of the two

    assert pool.find(b"prefix") == other


def test_forgetting_all_leaves_references_alone(pool: BlockPool) -> None:
    (block,) = pool.allocate(1)
    pool.set_hash(block, b"prefix")

    pool.forget_all()

    assert pool.find(b"prefix") is None
    assert pool.num_free == 3
