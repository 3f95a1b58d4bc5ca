from __future__ import annotations

import pytest

from core_engine.kv_cache.specs import KVCacheConfig, KVCacheGroup, KVCacheSpec
from core_engine.kv_cache.start_table import StartTable
from core_engine.worker.reports import CaptureReport, MemoryBudget, ProgramGroup


def pool(num_blocks: int, *windows: int | None) -> KVCacheConfig:
    """Blocks of 16 tokens for requests of 1,024; no step computes more than 64 of one."""
    spec = KVCacheSpec(num_kv_heads=1, head_dim=8, head_dim_v=8, dtype="float32")
    groups = tuple(
        KVCacheGroup(layers={"layer": spec}, shared={}, sliding_window=window) for window in windows
    )
    return KVCacheConfig(
        num_blocks=num_blocks, block_size=16, max_model_len=1024, groups=groups, max_step_tokens=64
    )


def test_the_table_shows_where_the_memory_went() -> None:
    mib = 1 << 20
    budget = MemoryBudget(
        total_bytes=None,
        weight_bytes=257 * mib,
        activation_bytes=12 * mib,
        kv_cache_bytes=101 * mib,
        rule="half of 202 MiB free",
    )
    config = pool(4 * 64 + 1, None)

    groups = (
        ProgramGroup(name="backbone", num_programs=9, seconds=12.34),
        ProgramGroup(name="sample", num_programs=12, seconds=3.0),
    )
    capture = CaptureReport(num_programs=21, seconds=15.4, groups=groups)
    table = StartTable.build(budget, config, capture, kv_cache_bytes=100 * mib, load_seconds=1.23)

    assert table.lines() == [
        "weights      257.0 MiB",
        "activations   12.0 MiB  largest step",
        "KV cache     100.0 MiB  half of 202 MiB free",
        "KV tokens        4,096",
        "concurrency       4.0x  requests of 1,024 tokens",
        "programs            21  backbone 9 in 12.3 s, sample 12 in 3.0 s",
        "load time        1.2 s",
    ]


def test_requests_share_the_tokens_of_a_step_and_a_window_holds_the_rest() -> None:
    # Full: 64 blocks. Window 128: 9 between steps, 13 while 64 tokens are computed.
    config = pool(73 * 3 + 4 + 1, None, 128)

    assert config.peak_blocks(1024) == 64 + 13
    assert config.max_concurrency == 3.0


def test_a_device_that_compiles_nothing_has_no_row_for_it() -> None:
    budget = MemoryBudget(
        total_bytes=None, weight_bytes=1, activation_bytes=1, kv_cache_bytes=1, rule="as configured"
    )
    capture = CaptureReport(num_programs=0, seconds=0.1)
    table = StartTable.build(budget, pool(9, None), capture, kv_cache_bytes=1, load_seconds=1.0)
    assert not [line for line in table.lines() if line.startswith("programs")]


@pytest.mark.parametrize(("share", "text"), [(1.0, "100.0%"), (0.9997, "99.9%"), (0.982, "98.2%")])
def test_only_a_model_that_is_divided_whole_counts_as_that(share: float, text: str) -> None:
    budget = MemoryBudget(
        total_bytes=None, weight_bytes=1, activation_bytes=1, kv_cache_bytes=1, rule="kv_cache_bytes"
    )
    table = StartTable.build(
        budget,
        pool(9, None),
        CaptureReport(num_programs=0, seconds=0.0),
        kv_cache_bytes=1,
        load_seconds=1.0,
        num_devices=2,
        divided_share=share,
    )
    assert table.lines()[0].endswith(f"  {text} of the parameters divided over 2 devices")
