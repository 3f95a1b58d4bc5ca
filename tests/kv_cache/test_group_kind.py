from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.kv_cache.group_kind import NEVER, FullAttention, SlidingWindow


def test_full_attention_keeps_every_block() -> None:
    full = FullAttention(4)

    assert full.peak_blocks(9, step_tokens=1) == 3
    assert full.freed_at(0) == NEVER


def test_a_full_hit_stops_before_the_first_gap() -> None:
    assert FullAttention(4).longest_hit({0, 1, 3}.__contains__, 4) == range(2)


@pytest.mark.parametrize(
    ("window", "num_tokens", "step_tokens", "blocks"),
    [
        (1, 100, 1, 1),  # a token sees itself alone
        (4, 100, 1, 2),  # four tokens lie in two blocks at most
        (5, 100, 1, 2),
        (6, 100, 1, 3),  # tokens 3 to 8 lie in three
        (6, 100, 8, 4),
        (6, 9, 8, 3),  # no more than all tokens take
    ],
)
def test_a_windows_peak_is_the_step_and_what_its_first_token_sees(
    window: int, num_tokens: int, step_tokens: int, blocks: int
) -> None:
    assert SlidingWindow(4, window).peak_blocks(num_tokens, step_tokens) == blocks


@pytest.mark.parametrize(("window", "freed_at"), [(1, 4), (2, 5), (6, 9)])
def test_a_block_is_free_when_the_next_token_does_not_see_its_last_position(
    window: int, freed_at: int
) -> None:
    assert SlidingWindow(4, window).freed_at(0) == freed_at


@pytest.mark.parametrize(
    ("cached", "expected"),
    [
        ({0, 1, 2, 3, 4}, range(3, 5)),  # token 20 sees tokens 15 to 20
        ({3, 4}, range(3, 5)),
        ({2, 4}, range(0)),  # token 12 would see tokens of block 1
        ({1, 2, 4}, range(1, 3)),
        ({0, 4}, range(1)),  # the window reaches before the first token
        (set(), range(0)),
    ],
)
def test_a_windows_hit_needs_the_blocks_that_it_sees_and_no_others(cached: set[int], expected: range) -> None:
    assert SlidingWindow(4, 6).longest_hit(cached.__contains__, 5) == expected


@given(
    window=st.integers(1, 20),
    block_size=st.integers(1, 5),
    cached=st.sets(st.integers(0, 9)),
    most=st.integers(0, 9),
)
def test_a_hit_is_the_longest_that_can_be_gone_on_from(
    window: int, block_size: int, cached: set[int], most: int
) -> None:
    kind = SlidingWindow(block_size, window)

    hit = kind.longest_hit(cached.__contains__, most)

    def seen(length: int) -> set[int]:
        return {p // block_size for p in range(max(0, length * block_size - window + 1), length * block_size)}

    assert set(hit) == seen(hit.stop)
    assert set(hit) <= cached
    assert not any(seen(length) <= cached for length in range(hit.stop + 1, most + 1))


@given(
    window=st.integers(1, 20), block_size=st.integers(1, 5), steps=st.lists(st.integers(1, 7), max_size=12)
)
def test_a_sequence_never_holds_more_than_the_peak(window: int, block_size: int, steps: list[int]) -> None:
    kind, processed, first = SlidingWindow(block_size, window), 0, 0
    for step in steps:
        end = processed + step
        held = -(-end // block_size) - first
        assert held <= kind.peak_blocks(end, max(steps))
        processed = end
        while kind.freed_at(first) <= processed:
            first += 1
        # What is kept is what the next token sees.
        assert first == max(0, processed - window + 1) // block_size
