from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from core_engine.config import EngineConfig
from core_engine.engine.settle import settle_config
from core_engine.errors import ConfigError, UnsupportedFeature
from core_engine.plugin import Capabilities
from core_engine.testing.fake_context import fake_model_config

MODEL = fake_model_config(dtype="bfloat16", max_position_embeddings=2048)
FULL = Capabilities(
    dtypes=("bfloat16", "float32"), block_sizes=(16, 32), chunked_prefill=True, prefix_caching=True
)


def settle(capabilities: Capabilities = FULL, **options: Any) -> tuple[EngineConfig, tuple[str, ...]]:
    return settle_config(EngineConfig(model="m", **options), MODEL, capabilities, "acme")


def test_what_is_left_open_takes_what_the_backend_offers() -> None:
    config, lines = settle()
    assert (config.dtype, config.block_size) == ("bfloat16", 16)
    assert (config.enable_prefix_caching, config.enable_chunked_prefill) == (True, True)
    assert lines == ()


def test_a_dtype_that_the_device_lacks_becomes_its_nearest_and_is_logged() -> None:
    config, lines = settle(replace(FULL, dtypes=("float32",)))
    assert config.dtype == "float32"
    assert lines == ("dtype bfloat16 → float32: acme has no bfloat16",)


def test_features_left_open_are_turned_off_where_the_backend_lacks_them() -> None:
    config, lines = settle(replace(FULL, prefix_caching=False))
    assert config.enable_prefix_caching is False
    assert lines == ("enable_prefix_caching off: acme does not offer it",)


@pytest.mark.parametrize(
    ("capabilities", "options", "named"),
    [
        (replace(FULL, prefix_caching=False), {"enable_prefix_caching": True}, "enable_prefix_caching"),
        (replace(FULL, chunked_prefill=False), {"enable_chunked_prefill": True}, "enable_chunked_prefill"),
        (FULL, {"dtype": "float16"}, "float16"),
        (FULL, {"block_size": 8}, "block_size 8"),
        (FULL, {"tensor_parallel_size": 2}, "tensor_parallel_size 2"),
    ],
)
def test_what_was_asked_for_by_name_and_is_not_offered_names_the_backend(
    capabilities: Capabilities, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedFeature, match="acme") as refusal:
        settle(capabilities, **options)
    assert named in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"dtype": "bfloat61"}, "Did you mean 'bfloat16'"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens"),
        ({"max_model_len": 1}, "max_model_len must be at least 2"),
        ({"max_num_seqs": 10**30}, "max_num_seqs must be at most 2147483647"),
        ({"kv_cache_bytes": 10**30}, "kv_cache_bytes must be at most 9223372036854775807"),
        ({"max_model_len": 4096}, "2048 positions"),
        ({"device_memory_utilization": 1.5}, "device_memory_utilization"),
        ({"seed": -1}, "seed"),
    ],
)
def test_impossible_values_name_the_field(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        settle(**options)
    assert named in str(refusal.value)


def test_the_request_limit_of_the_device_holds() -> None:
    config, lines = settle(replace(FULL, max_num_seqs=8))
    assert config.max_num_seqs == 8
    assert lines == ("max_num_seqs 64 → 8: the most that acme runs",)


def test_no_more_requests_run_than_a_step_has_tokens() -> None:
    config, lines = settle(max_num_batched_tokens=16)
    assert (config.max_num_batched_tokens, config.max_num_seqs) == (16, 16)
    assert lines == ("max_num_seqs 64 → 16: a step has 16 tokens, one per request",)


def test_without_chunked_prefill_a_step_has_room_for_the_longest_prompt() -> None:
    config, lines = settle(enable_chunked_prefill=False, max_model_len=2000, max_num_batched_tokens=512)
    assert config.max_num_batched_tokens == 2000
    assert lines == ("max_num_batched_tokens 512 → 2000: prompts are computed whole",)
