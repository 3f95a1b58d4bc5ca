from __future__ import annotations

from array import array

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kv_cache.integrity import assert_pool_is_sound

from core_engine.errors import ConfigError
from core_engine.kv_cache.hashing import ExtraKey
from core_engine.kv_cache.manager import BlockTable, KVCacheManager
from core_engine.kv_cache.specs import KVCacheConfig, KVCacheGroup, KVCacheSpec

GROUP = KVCacheGroup(
    layers={"layer.0": KVCacheSpec(num_kv_heads=1, head_dim=8, head_dim_v=8, dtype="float32")}, shared={}
)
TOKENS = array("i", range(100))


def manager(num_blocks: int = 9, groups: tuple[KVCacheGroup, ...] = (GROUP,)) -> KVCacheManager:
    return KVCacheManager(KVCacheConfig(num_blocks=num_blocks, block_size=4, max_model_len=32, groups=groups))


def filled(kv: KVCacheManager, num_tokens: int, *extra_keys: ExtraKey) -> BlockTable:
    """A table whose ``num_tokens`` tokens are computed and committed."""
    table = kv.new_table(extra_keys)
    assert kv.allocate(table, num_tokens) is not None
    kv.commit(table, TOKENS, num_tokens)
    return table


def test_a_table_grows_by_what_its_tokens_need() -> None:
    kv = manager()
    table = kv.new_table()

    assert len(kv.allocate(table, 5) or []) == 2
    assert kv.allocate(table, 8) == []
    assert len(kv.allocate(table, 9) or []) == 1
    assert len(table.block_ids) == 3


def test_nothing_is_taken_when_the_blocks_do_not_suffice() -> None:
    kv = manager(num_blocks=4)
    table = kv.new_table()

    assert kv.allocate(table, 13) is None
    assert kv.allocate(table, 8, keep_free=2) is None
    assert kv.pool.num_free == 3
    assert table.block_ids == []


def test_a_committed_prefix_is_found_by_an_equal_prompt() -> None:
    kv = manager()
    table = filled(kv, 10)

    found = kv.find_cached_prefix(kv.new_table(), TOKENS, 20)

    assert found == table.block_ids[:2]


def test_a_hit_ends_at_the_first_block_that_differs() -> None:
    kv = manager()
    table = filled(kv, 12)
    other = array("i", [*TOKENS[:4], 77, *TOKENS[5:12]])

    assert kv.find_cached_prefix(kv.new_table(), other, 12) == table.block_ids[:1]


def test_a_hit_is_no_longer_than_asked_for() -> None:
    kv = manager()
    filled(kv, 8)

    assert len(kv.find_cached_prefix(kv.new_table(), TOKENS, 7)) == 1


def test_blocks_are_not_found_before_they_are_committed() -> None:
    kv = manager()
    kv.allocate(kv.new_table(), 8)

    assert kv.find_cached_prefix(kv.new_table(), TOKENS, 8) == []


def test_case_11_requests_with_different_extra_keys_share_no_block() -> None:
    kv = manager()
    filled(kv, 8, ExtraKey("lora", b"a"))

    assert kv.find_cached_prefix(kv.new_table(), TOKENS, 8) == []
    assert kv.find_cached_prefix(kv.new_table((ExtraKey("salt", b"a"),)), TOKENS, 8) == []
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
    assert kv.find_cached_prefix(kv.new_table(), TOKENS, 12) == []

    kv.free(table)
    kv.allocate(table, 12)
    kv.commit(table, TOKENS, 12)
    assert len(kv.find_cached_prefix(kv.new_table(), TOKENS, 12)) == 3


def test_a_pool_without_a_block_for_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match="pool of 1 blocks holds no token"):
        manager(num_blocks=1)


def test_more_groups_than_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="one group of layers, got 2"):
        manager(groups=(GROUP, GROUP))


class ManagerMachine(RuleBasedStateMachine):
    """Random tables come, grow, commit and go over a small pool."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = manager(num_blocks=8)
        self.live: list[tuple[BlockTable, array[int], int]] = []

    @rule(start=st.integers(0, 1), num_tokens=st.integers(1, 24), keep_free=st.integers(0, 2))
    def begin(self, start: int, num_tokens: int, keep_free: int) -> None:
        table, tokens = self.kv.new_table(), array("i", range(start, start + 40))
        cached = self.kv.find_cached_prefix(table, tokens, num_tokens - 1)
        before = self.kv.pool.num_free
        blocks = self.kv.allocate(table, num_tokens, cached=cached, keep_free=keep_free)
        if blocks is None:
            assert self.kv.pool.num_free == before
        else:
            assert self.kv.pool.num_free >= keep_free
            self.live.append((table, tokens, num_tokens))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), more=st.integers(0, 9))
    def grow(self, data: st.DataObject, more: int) -> None:
        index = data.draw(st.integers(0, len(self.live) - 1))
        table, tokens, num_tokens = self.live[index]
        if self.kv.allocate(table, num_tokens + more) is not None:
            self.live[index] = (table, tokens, num_tokens + more)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        table, tokens, num_tokens = data.draw(st.sampled_from(self.live))
        self.kv.commit(table, tokens, data.draw(st.integers(0, min(num_tokens, len(tokens)))))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        table, _, _ = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.kv.free(table)

    @rule()
    def reset(self) -> None:
        assert self.kv.reset_prefix_cache() == (not self.live)

    @invariant()
    def the_pool_is_sound(self) -> None:
        assert_pool_is_sound(self.kv.pool, [table.block_ids for table, _, _ in self.live])

    def teardown(self) -> None:
        for table, _, _ in self.live:
            self.kv.free(table)
        assert_pool_is_sound(self.kv.pool, [])


TestManagerMachine = ManagerMachine.TestCase
