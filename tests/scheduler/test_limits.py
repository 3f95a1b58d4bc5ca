from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scheduler.harness import ALL

from core_engine.config import EngineConfig
from core_engine.errors import ConfigError, UnsupportedFeature
from core_engine.plugin import Capabilities
from core_engine.scheduler.limits import SchedulerLimits
from core_engine.scheduler.unified import UnifiedScheduler


def settle(capabilities: Capabilities = ALL, max_model_len: int = 100, **settings: Any) -> SchedulerLimits:
    config = EngineConfig(model="m", **settings)
    return SchedulerLimits.settle(config, capabilities, max_model_len, UnifiedScheduler)


def test_open_switches_follow_the_capabilities() -> None:
    assert settle().chunked_prefill
    assert settle().prefix_caching
    assert not settle(replace(ALL, prefix_caching=False)).prefix_caching
    assert not settle(replace(ALL, chunked_prefill=False)).chunked_prefill


@pytest.mark.parametrize("name", ["enable_chunked_prefill", "enable_prefix_caching"])
def test_a_feature_that_was_asked_for_and_is_not_offered_is_refused(name: str) -> None:
    bare = Capabilities(mixed_batches=True)

    with pytest.raises(UnsupportedFeature, match=f"{name}=True was asked for"):
        settle(bare, **{name: True})
    settle(bare, **{name: False})


def test_a_backend_that_cannot_mix_is_refused() -> None:
    with pytest.raises(UnsupportedFeature, match="mixed_batches"):
        settle(replace(ALL, mixed_batches=False))


def test_without_chunks_the_budget_must_hold_the_longest_sequence() -> None:
    settle(enable_chunked_prefill=False, max_num_batched_tokens=100)

    with pytest.raises(ConfigError, match=r"max_num_batched_tokens 99 is less than max_model_len 100"):
        settle(enable_chunked_prefill=False, max_num_batched_tokens=99)


def test_no_more_requests_run_than_tokens_seats_and_the_device_allow() -> None:
    assert settle(max_num_seqs=8).max_num_running == 8
    assert settle(max_num_seqs=8, max_num_batched_tokens=4).max_num_running == 4
    assert settle(replace(ALL, max_num_seqs=3), max_num_seqs=8).max_num_running == 3


def test_a_step_that_is_padded_costs_at_most_the_budget() -> None:
    padded = replace(ALL, token_buckets=(16, 32, 64))

    assert settle(padded, max_num_batched_tokens=64).max_num_batched_tokens == 64
    assert settle(padded, max_num_batched_tokens=63).max_num_batched_tokens == 32
    assert settle(padded, max_num_batched_tokens=500).max_num_batched_tokens == 64
    assert settle(padded, max_num_batched_tokens=63, max_num_seqs=50).max_num_running == 32
    with pytest.raises(ConfigError, match=r"15 is less than the smallest step.*16 tokens"):
        settle(padded, max_num_batched_tokens=15)


def test_the_longest_sequence_must_fit_padded() -> None:
    padded = replace(ALL, token_buckets=(64, 128), chunked_prefill=False)

    assert settle(padded, max_num_batched_tokens=128).max_num_batched_tokens == 128
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens 127, 64 without padding, is less than"):
        settle(padded, max_num_batched_tokens=127)
