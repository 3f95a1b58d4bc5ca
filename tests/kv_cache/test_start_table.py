from __future__ import annotations

from core_engine.kv_cache.specs import KVCacheConfig
from core_engine.kv_cache.start_table import StartTable
from core_engine.worker.reports import MemoryBudget


def test_the_table_shows_where_the_memory_went() -> None:
    mib = 1 << 20
    budget = MemoryBudget(
        total_bytes=None,
        weight_bytes=257 * mib,
        activation_bytes=12 * mib,
        kv_cache_bytes=101 * mib,
        rule="half of 202 MiB free",
    )
    config = KVCacheConfig(num_blocks=251, block_size=16, max_model_len=1000, groups=())

    table = StartTable.build(budget, config, kv_cache_bytes=100 * mib, load_seconds=1.23)

    assert table.max_concurrency == 4.0
    assert table.lines() == [
        "weights      257.0 MiB",
        "activations   12.0 MiB  largest step",
        "KV cache     100.0 MiB  half of 202 MiB free",
        "KV tokens        4,000",
        "concurrency       4.0x  requests of 1,000 tokens",
        "load time        1.2 s",
    ]
