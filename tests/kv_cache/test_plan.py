from __future__ import annotations

import logging

import pytest

from core_engine.errors import ContractError, DoesNotFit
from core_engine.kv_cache.plan import block_bytes, group_layers, plan_kv_cache
from core_engine.kv_cache.specs import KVCacheConfig, KVCacheSpec

SPEC = KVCacheSpec(num_kv_heads=2, head_dim=8, head_dim_v=8, dtype="float32", page_bytes=512)
#: Three layers, of which the last sees the first one's cache: 1,024 bytes a block of 4 tokens.
SPECS: dict[str, KVCacheSpec | str] = {"layer.0": SPEC, "layer.1": SPEC, "layer.2": "layer.0"}


def plan(
    num_blocks: int, max_model_len: int | None = None, longest_model_len: int | None = 64
) -> KVCacheConfig:
    return plan_kv_cache(
        SPECS,
        available_bytes=num_blocks * 1024 + 1000,
        block_size=4,
        max_model_len=max_model_len,
        longest_model_len=longest_model_len,
    )


def test_layers_that_own_a_cache_form_one_group_and_sharing_is_kept() -> None:
    (group,) = group_layers(SPECS)

    assert list(group.layers) == ["layer.0", "layer.1"]
    assert group.shared == {"layer.2": "layer.0"}


def test_the_pool_takes_all_whole_blocks_that_fit() -> None:
    config = plan(33)

    assert config.num_blocks == 33
    assert config.num_tokens == 32 * 4  # the null block holds none
    assert config.max_model_len == 64


def test_sharing_layers_cost_nothing() -> None:
    assert block_bytes(group_layers(SPECS)) == 1024


def test_a_wish_that_fits_is_kept() -> None:
    assert plan(9, max_model_len=32).max_model_len == 32


def test_a_wish_that_does_not_fit_is_refused_with_the_bytes_and_the_length_that_fits() -> None:
    # 33 tokens take 9 blocks and the null block: 10,240 bytes; there are 10,216.
    with pytest.raises(DoesNotFit, match=r"24 bytes too few.*max_model_len 32; set it") as error:
        plan(9, max_model_len=33)

    assert "max_model_len 33 needs 10.00 KiB" in str(error.value)


def test_without_a_wish_the_largest_length_that_fits_is_taken_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    assert plan(9).max_model_len == 32
    assert "max_model_len 32: the model's 64 tokens need 17.00 KiB of KV cache" in caplog.text


def test_a_model_without_a_limit_gets_what_fits() -> None:
    assert plan(9, longest_model_len=None).max_model_len == 32


@pytest.mark.parametrize("num_blocks", [0, 1])
def test_a_pool_without_one_block_for_tokens_is_refused(num_blocks: int) -> None:
    with pytest.raises(DoesNotFit, match="No max_model_len fits"):
        plan(num_blocks)


def test_a_layer_may_only_reuse_a_cache_that_is_owned() -> None:
    with pytest.raises(ContractError, match=r"'layer.1' reuses the KV cache of 'layer.2', which owns none"):
        group_layers({"layer.0": SPEC, "layer.1": "layer.2", "layer.2": "layer.0"})


def test_a_model_without_any_cache_is_refused() -> None:
    with pytest.raises(ContractError, match="no layer that owns a KV cache"):
        group_layers({})


def test_a_layer_whose_page_bytes_are_missing_is_named() -> None:
    spec = KVCacheSpec(num_kv_heads=2, head_dim=8, head_dim_v=8, dtype="float32")

    with pytest.raises(ContractError, match=r"'layer.0' has page_bytes 0"):
        block_bytes(group_layers({"layer.0": spec}))
