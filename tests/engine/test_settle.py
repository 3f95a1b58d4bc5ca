from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from core_engine.config import EngineConfig
from core_engine.engine.feature_table import FeatureRow, FeatureTable
from core_engine.engine.settle import longest_sequence, settle_config
from core_engine.errors import ConfigError, UnsupportedFeature
from core_engine.plugin import Capabilities
from core_engine.testing.fake_context import fake_model_config

MODEL = fake_model_config(dtype="bfloat16", max_position_embeddings=2048)
FULL = Capabilities(
    dtypes=("bfloat16", "float32"),
    block_sizes=(16, 32),
    chunked_prefill=True,
    mixed_batches=True,
    prefix_caching=True,
    sliding_window=True,
    max_logprobs=20,
    prompt_logprobs=True,
    lora=True,
    draft_tokens=True,
)


def settle(capabilities: Capabilities = FULL, **options: Any) -> tuple[EngineConfig, FeatureTable]:
    return settle_config(EngineConfig(model="m", **options), MODEL, capabilities, "acme")


def test_what_is_left_open_takes_what_the_backend_offers() -> None:
    config, features = settle()
    assert (config.dtype, config.block_size, config.scheduler) == ("bfloat16", 16, "unified")
    assert (config.enable_prefix_caching, config.enable_chunked_prefill) == (True, True)
    assert features.lines() == [
        "scheduler        unified   the default",
        "policy           fcfs      scheduling_policy",
        "chunked_prefill  on",
        "prefix_caching   on",
        "draft_tokens     off       num_draft_tokens=0",
        "lora             off       max_loras=0",
        "logprobs         on        up to 20 a token",
        "prompt_logprobs  on",
        "sliding_window   on",
        "dtype            bfloat16  the checkpoint's",
    ]


def test_a_dtype_that_the_device_lacks_becomes_its_nearest_and_is_logged() -> None:
    config, features = settle(replace(FULL, dtypes=("float32",)))
    assert config.dtype == "float32"
    assert features["dtype"] == FeatureRow("dtype", "float32", "the checkpoint has bfloat16, acme has not")


@pytest.mark.parametrize(
    "capability",
    ["chunked_prefill", "prefix_caching", "draft_tokens", "lora", "prompt_logprobs", "sliding_window"],
)
def test_case_31_features_left_open_are_turned_off_where_the_backend_lacks_them(capability: str) -> None:
    _, features = settle(replace(FULL, **{capability: False}))
    assert features[capability] == FeatureRow(capability, "off", "acme does not offer it")
    assert features["scheduler"].state == "unified"


def test_what_a_backend_does_not_offer_to_several_ranks_is_not_said_of_one() -> None:
    config = EngineConfig(model="m", tensor_parallel_size=2)
    capabilities = replace(FULL, lora=False, max_tensor_parallel_size=2)
    model = replace(MODEL, num_attention_heads=2, num_kv_heads=2)
    _, features = settle_config(config, model, capabilities, "acme")
    assert features["lora"].reason == "acme does not offer it with tensor_parallel_size 2"


def test_case_31_logprobs_are_a_number() -> None:
    _, features = settle(replace(FULL, max_logprobs=0))
    assert features["logprobs"] == FeatureRow("logprobs", "off", "acme does not offer it")


def test_case_31_under_the_simple_scheduler_its_own_lacks_are_the_reason() -> None:
    config, features = settle(replace(FULL, mixed_batches=False), max_loras=2)
    assert (config.scheduler, config.enable_chunked_prefill, config.enable_prefix_caching) == (
        "simple",
        False,
        False,
    )
    assert features["scheduler"].reason == (
        "not unified: it needs mixed_batches, which the backend does not declare"
    )
    for feature in ("chunked_prefill", "prefix_caching", "draft_tokens"):
        assert features[feature] == FeatureRow(feature, "off", "scheduler simple does without it")
    assert features["lora"] == FeatureRow("lora", "on", "max_loras=2")


def test_what_was_asked_for_is_said_to_be() -> None:
    _, features = settle(
        enable_prefix_caching=False, num_draft_tokens=4, scheduler="unified", dtype="float32"
    )
    assert features["scheduler"].reason == "asked for"
    assert features["prefix_caching"] == FeatureRow("prefix_caching", "off", "enable_prefix_caching=False")
    assert features["draft_tokens"] == FeatureRow("draft_tokens", "on", "num_draft_tokens=4")
    assert features["dtype"] == FeatureRow("dtype", "float32", "asked for")


@pytest.mark.parametrize(
    ("capabilities", "options", "named"),
    [
        (replace(FULL, prefix_caching=False), {"enable_prefix_caching": True}, "enable_prefix_caching"),
        (replace(FULL, chunked_prefill=False), {"enable_chunked_prefill": True}, "enable_chunked_prefill"),
        (replace(FULL, lora=False), {"max_loras": 1}, "max_loras=1"),
        (replace(FULL, draft_tokens=False), {"num_draft_tokens": 1}, "num_draft_tokens=1"),
        (replace(FULL, mixed_batches=False), {"scheduler": "unified"}, "mixed_batches"),
        (FULL, {"scheduler": "simple", "enable_prefix_caching": True}, "enable_prefix_caching"),
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
        ({"num_draft_tokens": -1}, "num_draft_tokens must be between 0"),
        ({"max_loras": -1}, "max_loras must be at least 0"),
        ({"scheduler": "smple"}, "Did you mean 'simple'"),
        ({"scheduling_policy": "priorty"}, "Did you mean 'priority'"),
    ],
)
def test_impossible_values_name_the_field(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        settle(**options)
    assert named in str(refusal.value)


def test_the_request_limit_of_the_device_holds() -> None:
    config, features = settle(replace(FULL, max_num_seqs=8))
    assert config.max_num_seqs == 8
    assert features["max_num_seqs"] == FeatureRow("max_num_seqs", "8", "64 → 8: the most that acme runs")


def test_no_more_requests_run_than_a_step_has_tokens() -> None:
    config, features = settle(max_num_batched_tokens=16)
    assert (config.max_num_batched_tokens, config.max_num_seqs) == (16, 16)
    assert features["max_num_seqs"].reason == "64 → 16: a step has 16 tokens, one per request"


def test_without_chunked_prefill_a_step_has_room_for_the_longest_prompt() -> None:
    config, features = settle(enable_chunked_prefill=False, max_model_len=2000, max_num_batched_tokens=512)
    assert config.max_num_batched_tokens == 2000
    assert features["max_num_batched_tokens"].reason == "512 → 2000: prompts are computed whole"


def test_where_steps_are_padded_the_budget_grows_to_a_step_that_there_is() -> None:
    padded = replace(FULL, mixed_batches=False, token_buckets=(256, 1024, 4096))
    config, _ = settle(padded, max_model_len=1500, max_num_batched_tokens=512)
    assert config.max_num_batched_tokens == 4096
    config, features = settle(padded, max_model_len=1000, max_num_batched_tokens=1024)
    assert config.max_num_batched_tokens == 1024
    with pytest.raises(KeyError):
        features["max_num_batched_tokens"]


def test_where_prompts_are_computed_whole_the_largest_step_is_the_longest_sequence() -> None:
    padded = replace(FULL, mixed_batches=False, token_buckets=(256, 1024))
    config, _ = settle(padded)
    assert config.max_num_batched_tokens == 2048
    assert longest_sequence(config, MODEL, padded) == 1024
    assert longest_sequence(config, replace(MODEL, max_position_embeddings=None), padded) == 1024
    config, _ = settle()
    assert longest_sequence(config, MODEL, FULL) == 2048


def test_a_sequence_that_no_step_holds_is_refused_with_the_numbers() -> None:
    padded = replace(FULL, mixed_batches=False, token_buckets=(256, 1024))
    config, _ = settle(padded, max_model_len=1025)
    with pytest.raises(ConfigError, match=r"max_model_len 1025: .* 1024 tokens; lower max_model_len to 1024"):
        longest_sequence(config, MODEL, padded)
