"""What of a GPU's memory the KV cache may take."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_engine_cuda.memory import MemoryUse, graph_reserve, kv_cache_share

from core_engine.plugin import DoesNotFit

MIB, GIB = 1 << 20, 1 << 30
USE = MemoryUse(
    total=80 * GIB,
    before=GIB // 2,
    weights=16 * GIB,
    overhead=GIB // 4,
    activations=2 * GIB,
    graphs=GIB // 4,
)


def test_the_cache_gets_what_everything_else_leaves_of_the_share() -> None:
    num_bytes, rule = kv_cache_share(USE, 0.9)
    assert num_bytes == int(72 * GIB) - 19 * GIB
    assert rule.startswith("90% of the GPU's memory")


def test_nothing_left_is_told_with_every_number() -> None:
    with pytest.raises(DoesNotFit) as caught:
        kv_cache_share(replace(USE, total=20 * GIB), 0.9)
    text = str(caught.value)
    assert "90% of the GPU's 20,480 MiB are 18,432 MiB" in text
    assert "the weights take 16,384 MiB, the largest step 2,048 MiB" in text
    assert "graphs 256 MiB, CUDA and other programs 512 MiB: 1,024 MiB too much" in text


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ({"before": 10 * GIB}, "End other programs on this GPU, or divide"),
        ({}, "Divide the model over more GPUs (tensor_parallel_size), or lower max_num_batched_tokens"),
        ({"graphs": 2 * GIB, "activations": 0}, "or capture fewer graph_sizes, or none (enforce_eager)"),
    ],
)
def test_the_advice_fits_the_numbers(change: dict[str, int], advice: str) -> None:
    with pytest.raises(DoesNotFit) as caught:
        kv_cache_share(replace(USE, total=20 * GIB, **change), 0.9)
    assert advice in str(caught.value)


def test_a_step_that_is_not_to_blame_is_not_blamed() -> None:
    with pytest.raises(DoesNotFit) as caught:
        kv_cache_share(replace(USE, total=8 * GIB), 0.9)
    assert "max_num_batched_tokens" not in str(caught.value)


def test_graphs_are_kept_room_for_their_largest_and_each_graph() -> None:
    assert graph_reserve(11, 32, GIB, 64 / 2048) == GIB // 32 + 11 * 32 * (MIB // 8)
    assert graph_reserve(0, 32, GIB, 1.0) == 0
