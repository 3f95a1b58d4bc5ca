"""How the CPU worker divides the memory."""

from __future__ import annotations

from core_engine.backends.cpu.worker import kv_cache_share

GIB = 1 << 30


def test_the_kv_cache_takes_half_of_what_the_largest_step_leaves() -> None:
    share, rule = kv_cache_share(None, total=32 * GIB, free=10 * GIB, activation_bytes=2 * GIB)
    assert (share, rule) == (4 * GIB, "half of the free memory, at most 8 GiB")


def test_it_takes_no_more_than_8_gib() -> None:
    assert kv_cache_share(None, total=256 * GIB, free=200 * GIB, activation_bytes=0)[0] == 8 * GIB


def test_what_the_user_asks_for_wins() -> None:
    assert kv_cache_share(20 * GIB, total=32 * GIB, free=10 * GIB, activation_bytes=0) == (
        20 * GIB,
        "kv_cache_bytes",
    )


def test_no_memory_left_gives_nothing_rather_than_a_negative_number() -> None:
    assert kv_cache_share(None, total=GIB, free=GIB, activation_bytes=2 * GIB)[0] == 0


def test_where_the_system_tells_only_its_size_it_takes_a_quarter() -> None:
    assert kv_cache_share(None, total=16 * GIB, free=None, activation_bytes=0)[0] == 4 * GIB


def test_all_ranks_together_take_no_more_than_one() -> None:
    share, rule = kv_cache_share(None, total=32 * GIB, free=10 * GIB, activation_bytes=GIB, num_ranks=4)
    assert (4 * share, rule) == (3 * GIB, "half of the free memory, at most 8 GiB, over 4 ranks")
    largest, _ = kv_cache_share(None, total=256 * GIB, free=200 * GIB, activation_bytes=0, num_ranks=4)
    assert largest == 2 * GIB
    quarter, _ = kv_cache_share(None, total=16 * GIB, free=None, activation_bytes=0, num_ranks=2)
    assert quarter == 2 * GIB
