"""The manager over groups of several kinds; blocks hold 4 tokens."""

from __future__ import annotations

from array import array

from kv_cache.test_manager import TOKENS, manager

from core_engine.kv_cache.group_kind import NEVER
from core_engine.kv_cache.manager import BlockTable, KVCacheManager


def processed(kv: KVCacheManager, num_tokens: int) -> BlockTable:
    """A table whose ``num_tokens`` tokens are computed and committed, and that gave back what it could."""
    table = kv.new_table()
    assert kv.allocate(table, num_tokens) is not None
    kv.commit(table, TOKENS, num_tokens)
    kv.free_behind(table, num_tokens)
    return table


def test_every_group_gets_blocks_of_its_own_for_the_same_tokens() -> None:
    kv = manager(windows=(None, 6))
    table = kv.new_table()

    assert kv.allocate(table, 8) == [[1, 2], [3, 4]]
    assert kv.allocate(table, 9) == [[5], [6]]
    assert table.num_held == 6


def test_nothing_is_taken_unless_all_groups_get_their_blocks() -> None:
    kv = manager(num_blocks=6, windows=(None, 6))
    table = kv.new_table()

    assert kv.allocate(table, 12) is None
    assert kv.pool.num_free == 5


def test_blocks_wholly_behind_the_window_are_given_back_once_their_tokens_are_processed() -> None:
    # Token 10 sees tokens 5 to 10: block 0 (tokens 0 to 3) is of no more use once ten are processed, and
    # for token 9, which sees tokens 4 to 9, neither.
    kv = manager(windows=(None, 6))
    table = kv.new_table()
    kv.allocate(table, 12)

    assert kv.free_behind(table, 8) == 9
    assert kv.pool.num_free == 2
    assert kv.free_behind(table, 9) == 13
    assert kv.pool.num_free == 3
    assert table.block_ids == [[1, 2, 3], [0, 5, 6]]


def test_a_group_that_keeps_all_gives_nothing_back() -> None:
    kv = manager()
    table = kv.new_table()
    kv.allocate(table, 32)

    assert kv.free_behind(table, 32) == NEVER
    assert kv.pool.num_free == 0
    assert not kv.frees_early


def test_the_next_time_to_give_back_is_the_earliest_of_all_groups() -> None:
    kv = manager(num_blocks=40, windows=(None, 9, 2))
    table = kv.new_table()
    kv.allocate(table, 20)

    assert kv.free_behind(table, 5) == 9  # 8 tokens and one for the window of 2; that of 9 waits for 12
    assert table.num_null == [0, 0, 1]


def test_a_table_that_gave_blocks_back_frees_the_rest() -> None:
    kv = manager(num_blocks=20, windows=(None, 6))
    table = processed(kv, 20)
    assert table.num_held == 5 + 2

    kv.free(table)

    assert kv.pool.num_free == kv.pool.num_usable
    assert table.num_held == 0


def test_blocks_to_come_are_those_of_the_rest_less_what_the_window_gives_back() -> None:
    kv = manager(num_blocks=40, windows=(None, 6), max_step_tokens=4)
    table = kv.new_table()

    # All of 32 tokens: eight blocks, and three for the window and a step.
    assert kv.num_blocks_to_come(32, len(table), table.num_null) == 8 + 3
    kv.allocate(table, 8)
    assert kv.num_blocks_to_come(32, len(table), table.num_null) == 6 + 1
    kv.allocate(table, 12)
    assert kv.num_blocks_to_come(32, len(table), table.num_null) == 5 + 0
    kv.free_behind(table, 12)
    assert kv.num_blocks_to_come(32, len(table), table.num_null) == 5 + 1
    assert kv.num_blocks_to_come(13, len(table), table.num_null) == 1 + 1


def test_a_hit_takes_over_only_what_the_window_still_sees() -> None:
    kv = manager(num_blocks=20, windows=(None, 6))
    table = processed(kv, 16)

    found = kv.find_cached_prefix(kv.new_table(), TOKENS, 20)

    # Token 16 sees tokens 11 to 16, which begin in block 2.
    assert found.block_ids == [table.block_ids[0], [0, 0, *table.block_ids[1][2:]]]
    assert found.num_null == [0, 2]


def test_a_hit_ends_where_the_window_has_all_its_blocks() -> None:
    kv = manager(num_blocks=13, windows=(None, 6))
    table = processed(kv, 16)  # takes blocks 1 to 4 and 5 to 8, and has given back 5 and 6
    other = kv.new_table()
    # Nine to twelve were never used; then block 6 is taken, which held the window group's second block.
    kv.allocate(other, 8)
    kv.allocate(other, 9)
    assert other.block_ids == [[9, 10, 6], [11, 12, 5]]

    # With 16 tokens cached the window needs blocks 2 and 3, which are there; with 12, blocks 1 and 2.
    assert len(kv.find_cached_prefix(kv.new_table(), TOKENS, 16)) == 4
    assert len(kv.find_cached_prefix(kv.new_table(), TOKENS, 15)) == 0
    assert table.num_held == 6


def test_a_hit_is_the_longest_boundary_that_all_groups_share() -> None:
    kv = manager(num_blocks=40, windows=(None, 5, 9))
    chain = kv.new_table()
    names = [kv._hash(chain, TOKENS, index) for index in range(6)]

    def present(group: int, *indices: int) -> None:
        for index in indices:
            (block,) = kv.pool.allocate(1)
            kv.pool.set_hash(block, names[index] + kv._suffixes[group])

    # Full: up to 5 blocks. Window 5 needs the block before the boundary, window 9 the two before it.
    present(0, 0, 1, 2, 3, 4)
    present(1, 1, 2, 4)
    present(2, 0, 1, 2, 3)

    found = kv.find_cached_prefix(kv.new_table(), TOKENS, 24)

    # 5: window 9 lacks block 4. 4: window 5 lacks block 3. 3: window 5 has block 2, window 9 has 1 and 2.
    assert len(found) == 3
    assert found.num_null == [0, 2, 1]


def test_a_block_of_one_group_is_never_taken_for_another() -> None:
    kv = manager(num_blocks=20, windows=(None, 6))
    table = kv.new_table()
    name = kv._hash(table, TOKENS, 0)
    (block,) = kv.pool.allocate(1)
    kv.pool.set_hash(block, name + kv._suffixes[1])

    assert len(kv.find_cached_prefix(table, TOKENS, 8)) == 0


def test_a_model_of_windows_alone_hits_without_the_head_of_the_prompt() -> None:
    kv = manager(num_blocks=5, windows=(4,))
    table = kv.new_table()
    for num_tokens in range(4, 33, 4):  # eight blocks' worth of tokens through four blocks
        assert kv.allocate(table, num_tokens) is not None
        kv.commit(table, TOKENS, num_tokens)
        kv.free_behind(table, num_tokens)

    found = kv.find_cached_prefix(kv.new_table(), TOKENS, 32)

    assert found.block_ids == [[0] * 7 + table.block_ids[0][7:]]


def test_what_was_given_back_is_found_until_it_is_evicted() -> None:
    kv = manager(num_blocks=20, windows=(None, 6))
    processed(kv, 16)
    other = array("i", [*TOKENS[:8], 99, 99, 99, 99])

    # The two prompts part after block 1, which only the window group gave back.
    assert len(kv.find_cached_prefix(kv.new_table(), other, 12)) == 2


def test_the_null_entries_of_a_hit_cost_nothing() -> None:
    kv = manager(num_blocks=20, windows=(None, 6))
    kv.free(processed(kv, 16))
    table = kv.new_table()

    cached = kv.find_cached_prefix(table, TOKENS, 16)
    assert cached.num_null == [0, 2]
    assert kv.allocate(table, 20, cached=cached) is not None

    assert table.num_held == 5 + 3
    assert kv.pool.num_free == kv.pool.num_usable - table.num_held


def test_a_hit_shares_the_windows_blocks_until_both_have_gone_on() -> None:
    kv = manager(num_blocks=20, windows=(6,))
    first, second = processed(kv, 8), kv.new_table()
    assert kv.allocate(second, 12, cached=kv.find_cached_prefix(second, TOKENS, 8)) is not None
    shared = first.block_ids[0][0]

    kv.free_behind(second, 12)
    assert not kv.pool.is_free(shared)

    kv.allocate(first, 12)
    kv.free_behind(first, 12)
    assert kv.pool.is_free(shared)


def test_a_blocks_tokens_are_committed_for_all_groups_and_null_entries_are_left_out() -> None:
    kv = manager(num_blocks=20, windows=(None, 4))
    table = kv.new_table()
    kv.allocate(table, 12)
    kv.free_behind(table, 8)

    kv.commit(table, TOKENS, 12)

    assert kv.pool.find(kv._hash(table, TOKENS, 0)) == table.block_ids[0][0]
    assert kv.pool.find(kv._hash(table, TOKENS, 0) + kv._suffixes[1]) is None
    assert kv.pool.find(kv._hash(table, TOKENS, 2) + kv._suffixes[1]) == table.block_ids[1][2]


def test_all_groups_lose_the_tail_of_a_prefix_together() -> None:
    kv = manager(num_blocks=9, windows=(None, 100))
    kv.free(processed(kv, 16))

    kv.allocate(kv.new_table(), 4)  # two blocks: one of each group's tail

    assert len(kv.find_cached_prefix(kv.new_table(), TOKENS, 16)) == 3
