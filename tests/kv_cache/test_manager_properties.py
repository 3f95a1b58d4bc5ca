"""Whatever happens to tables, the pool stays sound and every hit can be gone on from."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kv_cache.integrity import assert_pool_is_sound
from kv_cache.test_manager import manager

from core_engine.kv_cache.block_pool import NULL_BLOCK
from core_engine.kv_cache.group_kind import SlidingWindow
from core_engine.kv_cache.manager import BlockTable, CachedPrefix, KVCacheManager


@dataclass
class Live:
    table: BlockTable
    tokens: array[int]
    #: Tokens that fit, and those that are processed.
    num_tokens: int
    num_processed: int


class ManagerMachine(RuleBasedStateMachine):
    """Random tables come, grow, commit, give back and go over a small pool."""

    @initialize(windows=st.sampled_from([(None,), (5,), (None, 1), (None, 5), (None, 4, 11), (3, 9, 9)]))
    def start(self, windows: tuple[int | None, ...]) -> None:
        self.kv: KVCacheManager = manager(num_blocks=8 * len(windows), windows=windows)
        self.live: list[Live] = []

    @rule(start=st.integers(0, 1), num_tokens=st.integers(1, 24), keep_free=st.integers(0, 2))
    def begin(self, start: int, num_tokens: int, keep_free: int) -> None:
        table, tokens = self.kv.new_table(), array("i", range(start, start + 60))
        cached = self.kv.find_cached_prefix(table, tokens, num_tokens - 1)
        self.assert_hit_holds_what_is_seen(table, tokens, cached)
        before = self.kv.pool.num_free
        blocks = self.kv.allocate(table, num_tokens, cached=cached, keep_free=keep_free)
        if blocks is None:
            assert self.kv.pool.num_free == before
        else:
            assert self.kv.pool.num_free >= keep_free
            assert blocks == table.block_ids
            self.live.append(Live(table, tokens, num_tokens, 4 * len(cached)))

    def assert_hit_holds_what_is_seen(
        self, table: BlockTable, tokens: array[int], cached: CachedPrefix
    ) -> None:
        length = 4 * len(cached)
        for group, (kind, row) in enumerate(zip(self.kv.kinds, cached.block_ids, strict=True)):
            window = kind.window if isinstance(kind, SlidingWindow) else 1000
            for index, block in enumerate(row):
                key = self.kv._hash(table, tokens, index) + self.kv._suffixes[group]
                is_seen = (index + 1) * 4 > length - window + 1
                assert self.kv.pool._hash_of[block] == key if is_seen else block == NULL_BLOCK

    @precondition(lambda self: self.live)
    @rule(data=st.data(), more=st.integers(0, 9))
    def grow(self, data: st.DataObject, more: int) -> None:
        live = data.draw(st.sampled_from(self.live))
        if self.kv.allocate(live.table, live.num_tokens + more) is not None:
            live.num_tokens += more

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def process(self, data: st.DataObject) -> None:
        live = data.draw(st.sampled_from(self.live))
        most = min(live.num_tokens, len(live.tokens))
        live.num_processed = data.draw(st.integers(min(live.num_processed, most), most))
        self.kv.commit(live.table, live.tokens, live.num_processed)
        if data.draw(st.booleans()):
            following = self.kv.free_behind(live.table, live.num_processed)
            assert following > live.num_processed

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self.kv.free(self.live.pop(data.draw(st.integers(0, len(self.live) - 1))).table)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        live = data.draw(st.sampled_from(self.live))
        self.kv.forget(live.table)
        assert len(self.kv.find_cached_prefix(live.table, live.tokens, live.num_processed)) == 0

    @rule()
    def reset(self) -> None:
        assert self.kv.reset_prefix_cache() == (not any(live.table.num_held for live in self.live))

    @invariant()
    def the_pool_is_sound(self) -> None:
        if hasattr(self, "kv"):
            assert_pool_is_sound(self.kv.pool, [live.table for live in self.live])

    def teardown(self) -> None:
        if hasattr(self, "kv"):
            for live in self.live:
                self.kv.free(live.table)
            assert_pool_is_sound(self.kv.pool, [])


TestManagerMachine = ManagerMachine.TestCase
TestManagerMachine.settings = settings(max_examples=150, deadline=None)
