"""Dense attention over one tensor per layer is held to the formula, with and without the kernel's padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from core_engine_tpu.dense import DenseAttention
from core_engine_tpu.device_io import TpuIO
from core_engine_tpu.kv_layout import dense_layout, kernel_layout
from core_engine_tpu.runtime import XlaRuntime

from core_engine.backends.cpu.device_io import CpuIO
from core_engine.testing.attention_case import AttentionCase

STEPS = {
    "one decode": [(7, 1)],
    "decodes": [(0, 1), (15, 1), (16, 1), (40, 1)],
    "prefill": [(0, 37)],
    "mixed": [(30, 1), (0, 20), (5, 18), (12, 1)],
}
LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "three heads": {"num_heads": 9, "num_kv_heads": 3},
    "window": {"sliding_window": 9},
    "soft cap": {"soft_cap": 0.7},
    "sinks": {"sinks": True},
    "narrow values": {"head_dim_v": 16},
}


@pytest.fixture(params=[dense_layout, kernel_layout], ids=["unpadded", "padded"])
def backend(request: pytest.FixtureRequest) -> DenseAttention:
    return DenseAttention(request.param)


def assert_right(case: AttentionCase, output: torch.Tensor, tolerance: float = 1e-5) -> None:
    expected = case.expected()
    assert torch.isfinite(output).all()
    torch.testing.assert_close(output[: len(expected)].double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("requests", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_equals_the_formula(
    backend: DenseAttention, requests: list[tuple[int, int]], layer: dict[str, Any]
) -> None:
    case = AttentionCase(requests, **layer)
    assert_right(case, case.run(backend, CpuIO()))


def test_bfloat16(backend: DenseAttention) -> None:
    case = AttentionCase(STEPS["mixed"], dtype="bfloat16")
    assert_right(case, case.run(backend, CpuIO()), 2e-2)


@pytest.mark.parametrize("window", [None, 6])
def test_padding_and_what_nobody_wrote_change_nothing(backend: DenseAttention, window: int | None) -> None:
    case, io = AttentionCase(STEPS["mixed"], sliding_window=window, pad=(64, 6)), CpuIO()
    cache = case.allocate(backend, io).fill_(torch.nan)
    case.write_past(backend, io, cache)
    assert_right(case, case.run_step(backend, io, cache))


def test_case_06_scattered_blocks_give_the_same_and_free_blocks_stay_as_they_are(
    backend: DenseAttention,
) -> None:
    first, second = AttentionCase(STEPS["mixed"]), AttentionCase(STEPS["mixed"])
    second.block_ids = [second.num_blocks - blocks for blocks in first.block_ids]
    outputs = []
    for case in (first, second):
        io = CpuIO()
        cache = case.allocate(backend, io).normal_()
        owned = {block for blocks in case.block_ids for block in blocks.tolist()}
        free = sorted(set(range(1, case.num_blocks)) - owned)
        before = cache[free].clone()
        case.write_past(backend, io, cache)
        outputs.append(case.run_step(backend, io, cache))
        assert len(free) == 3
        assert torch.equal(cache[free], before)
    assert torch.equal(*outputs)


def test_a_layer_that_shares_a_cache_reads_it_and_writes_nothing(backend: DenseAttention) -> None:
    case, io = AttentionCase(STEPS["mixed"]), CpuIO()
    cache = case.allocate(backend, io)
    case.write_past(backend, io, cache)
    owner = case.run_step(backend, io, cache)
    before = cache.clone()
    assert torch.equal(owner, case.run_step(backend, io, cache, shares_cache=True))
    assert torch.equal(cache, before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_page_is_counted_as_it_is_allocated(backend: DenseAttention, dtype: str) -> None:
    case = AttentionCase([(0, 1)], dtype=dtype, num_heads=9, num_kv_heads=3, head_dim_v=16)
    cache = case.allocate(backend, CpuIO())
    assert cache.nbytes == case.num_blocks * backend.page_bytes(case.layer.spec, case.block_size)


@pytest.mark.parametrize("layer", [LAYERS["three heads"], LAYERS["window"]], ids=["three heads", "window"])
def test_on_the_device_it_is_the_same(runtime: XlaRuntime, layer: dict[str, Any]) -> None:
    case = AttentionCase(STEPS["mixed"], pad=(64, 6), device=runtime.device, **layer)
    with torch.no_grad():
        backend, io = DenseAttention(), TpuIO(runtime)
        cache = case.allocate(backend, io)
        case.write_past(backend, io, cache)
        assert_right(case, case.run_step(backend, io, cache))
