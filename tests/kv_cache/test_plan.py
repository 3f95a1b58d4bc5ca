from __future__ import annotations

import logging

import pytest

from core_engine.errors import DoesNotFit
from core_engine.kv_cache.plan import plan_kv_cache
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


def test_the_pool_takes_all_whole_blocks_that_fit() -> None:
    config = plan(33)

    assert config.num_blocks == 33
    assert config.num_tokens == 32 * 4  # the null block holds none
    assert config.max_model_len == 64


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


SLIDING = KVCacheSpec(
    num_kv_heads=2, head_dim=8, head_dim_v=8, dtype="float32", sliding_window=8, page_bytes=512
)


def plan_windows(
    num_blocks: int, max_model_len: int | None = None, longest_model_len: int | None = 64
) -> KVCacheConfig:
    """Two full layers and two with a window of 8; steps of 6 tokens; 1,024 bytes a block of 4 tokens."""
    return plan_kv_cache(
        {"layer.0": SPEC, "layer.1": SPEC, "layer.2": SLIDING, "layer.3": SLIDING},
        available_bytes=num_blocks * 1024 + 1000,
        block_size=4,
        max_model_len=max_model_len,
        longest_model_len=longest_model_len,
        max_step_tokens=6,
    )


def test_the_longest_sequence_counts_what_windows_give_back() -> None:
    # 64 tokens: 16 blocks for full attention; a step of 6 and 7 tokens before it lie in 4 blocks at most.
    assert plan_windows(21).max_model_len == 64
    config = plan_windows(20)

    assert config.max_model_len == config.num_tokens == 60
    assert config.peak_blocks(60) == 19


def test_a_wish_that_does_not_fit_is_refused_with_the_bytes_of_all_groups() -> None:
    with pytest.raises(DoesNotFit, match=r"\(21 blocks of 1.00 KiB, one of them for padding\)") as error:
        plan_windows(20, max_model_len=64)

    assert "max_model_len 64 needs 21.00 KiB of KV cache" in str(error.value)
    assert "24 bytes too few. The longest that fits is max_model_len 60" in str(error.value)


def test_a_model_of_windows_alone_is_as_long_as_it_may_be() -> None:
    config = plan_kv_cache(
        {"layer.0": SLIDING},
        available_bytes=512 * 6,
        block_size=4,
        max_model_len=1000,
        longest_model_len=None,
        max_step_tokens=6,
    )

    assert config.max_model_len == config.num_tokens == 1000
    assert config.peak_blocks(1000) == 4
