from __future__ import annotations

from array import array

import pytest

from core_engine.errors import ConfigError
from core_engine.kv_cache.hashing import ExtraKey
from core_engine.kv_cache.manager import BlockTable, KVCacheManager
from core_engine.kv_cache.specs import KVCacheConfig, KVCacheGroup, KVCacheSpec

TOKENS = array("i", range(100))


def manager(
    num_blocks: int = 9, windows: tuple[int | None, ...] = (None,), max_step_tokens: int | None = None
) -> KVCacheManager:
    """A pool of blocks of 4 tokens for one group per window; None keeps all positions."""
    spec = KVCacheSpec(num_kv_heads=1, head_dim=8, head_dim_v=8, dtype="float32")
    groups = tuple(
        KVCacheGroup(layers={f"layer.{index}": spec}, shared={}, sliding_window=window)
        for index, window in enumerate(windows)
    )
    return KVCacheManager(
        KVCacheConfig(
            num_blocks=num_blocks,
            block_size=4,
            max_model_len=32,
            groups=groups,
            max_step_tokens=max_step_tokens,
        )
    )


def filled(kv: KVCacheManager, num_tokens: int, *extra_keys: ExtraKey) -> BlockTable:
    """A table whose ``num_tokens`` tokens are computed and committed."""
    table = kv.new_table(extra_keys)
    assert kv.allocate(table, num_tokens) is not None
    kv.commit(table, TOKENS, num_tokens)
    return table


def test_a_table_grows_by_what_its_tokens_need() -> None:
    kv = manager()
    table = kv.new_table()

    assert kv.allocate(table, 5) == [[1, 2]]
    assert kv.allocate(table, 8) == [[]]
    assert kv.allocate(table, 9) == [[3]]
    assert table.block_ids == [[1, 2, 3]]


def test_nothing_is_taken_when_the_blocks_do_not_suffice() -> None:
    kv = manager(num_blocks=4)
    table = kv.new_table()

    assert kv.allocate(table, 13) is None
    assert kv.allocate(table, 8, keep_free=2) is None
    assert kv.pool.num_free == 3
    assert table.block_ids == [[]]


def test_a_committed_prefix_is_found_by_an_equal_prompt() -> None:
    kv = manager()
    table = filled(kv, 10)

    found = kv.find_cached_prefix(kv.new_table(), TOKENS, 20)

    assert found.block_ids == [table.block_ids[0][:2]]


def test_a_hit_ends_at_the_first_block_that_differs() -> None:
    kv = manager()
    table = filled(kv, 12)
    other = array("i", [*TOKENS[:4], 77, *TOKENS[5:12]])

    assert kv.find_cached_prefix(kv.new_table(), other, 12).block_ids == [table.block_ids[0][:1]]


def test_a_hit_is_no_longer_than_asked_for() -> None:
    kv = manager()
    filled(kv, 8)

    assert len(kv.find_cached_prefix(kv.new_table(), TOKENS, 7)) == 1


def test_blocks_are_not_found_before_they_are_committed() -> None:
    kv = manager()
    kv.allocate(kv.new_table(), 8)

    assert len(kv.find_cached_prefix(kv.new_table(), TOKENS, 8)) == 0


def test_case_11_requests_with_different_extra_keys_share_no_block() -> None:
    kv = manager()
    filled(kv, 8, ExtraKey("lora", b"a"))

    assert len(kv.find_cached_prefix(kv.new_table(), TOKENS, 8)) == 0
    assert len(kv.find_cached_prefix(kv.new_table((ExtraKey("salt", b"a"),)), TOKENS, 8)) == 0
    assert len(kv.find_cached_prefix(kv.new_table((ExtraKey("lora", b"a"),)), TOKENS, 8)) == 2


def test_case_04_a_hit_on_free_blocks_counts_them_as_taken() -> None:
    kv = manager(num_blocks=4)
    first = filled(kv, 8)
    kv.free(first)
    table = kv.new_table()
    cached = kv.find_cached_prefix(table, TOKENS, 8)

    # Three blocks are free, two of them the hit: one is left for new tokens, not three.
    assert kv.allocate(table, 16, cached=cached) is None
    assert kv.allocate(table, 12, cached=cached) is not None
    assert kv.pool.num_free == 0


def test_shared_blocks_stay_until_the_last_holder_frees_them() -> None:
    kv = manager()
    first = filled(kv, 8)
    second = kv.new_table()
    kv.allocate(second, 12, cached=kv.find_cached_prefix(second, TOKENS, 8))

    kv.free(first)
    assert kv.pool.num_free == 5

    kv.free(second)
    assert kv.pool.num_free == 8


def test_case_16_a_requests_tail_is_evicted_before_its_head() -> None:
    kv = manager(num_blocks=4)
    kv.free(filled(kv, 12))

    kv.allocate(kv.new_table(), 8)

    assert len(kv.find_cached_prefix(kv.new_table(), TOKENS, 12)) == 1


def test_reset_says_whether_blocks_are_in_use() -> None:
    kv = manager()
    table = filled(kv, 8)

    assert not kv.reset_prefix_cache()
    kv.free(table)
    assert kv.reset_prefix_cache()


def test_case_05_what_a_table_wrote_before_a_reset_is_never_found_after_it() -> None:
    kv = manager()
    table = kv.new_table()
    kv.allocate(table, 8)
    kv.reset_prefix_cache()

    kv.allocate(table, 12)
    kv.commit(table, TOKENS, 12)
    assert len(kv.find_cached_prefix(kv.new_table(), TOKENS, 12)) == 0

    kv.free(table)
    kv.allocate(table, 12)
    kv.commit(table, TOKENS, 12)
    assert len(kv.find_cached_prefix(kv.new_table(), TOKENS, 12)) == 3


def test_a_forgotten_table_is_found_neither_now_nor_when_it_grows() -> None:
    kv = manager()
    table = filled(kv, 8)
    sharing = kv.new_table()
    kv.allocate(sharing, 8, cached=kv.find_cached_prefix(sharing, TOKENS, 8))

    kv.forget(table)
    kv.allocate(table, 12)
    kv.commit(table, TOKENS, 12)

    assert len(kv.find_cached_prefix(kv.new_table(), TOKENS, 12)) == 0
    kv.free(table)
    kv.free(sharing)
    assert kv.pool.num_free == 8


def test_what_is_computed_after_a_table_was_forgotten_is_not_found() -> None:
    kv = manager()
    table = kv.new_table()
    kv.allocate(table, 8)

    kv.forget(table)
    kv.commit(table, TOKENS, 8)

    assert len(kv.find_cached_prefix(kv.new_table(), TOKENS, 8)) == 0


def test_a_pool_without_a_block_for_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match="pool of 1 blocks holds no token"):
        manager(num_blocks=1)
