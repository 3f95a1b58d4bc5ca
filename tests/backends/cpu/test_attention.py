"""The compiled attention is held to the formula, in every kind of step, layer, dtype and block size."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from core_engine.attention.base import AttentionNeeds
from core_engine.backends.cpu.attention import BLOCK_SIZES, CpuKVCache, NumbaPagedAttention
from core_engine.backends.cpu.device_io import CpuIO
from core_engine.testing.attention_case import AttentionCase

STEPS = {
    "one decode": [(7, 1)],
    "first tokens": [(0, 1), (0, 1)],
    "decodes": [(0, 1), (15, 1), (16, 1), (31, 1), (200, 1)],
    "many decodes": [(length, 1) for length in range(40)],
    "prefill": [(0, 150)],
    "prefills": [(0, 16), (0, 1), (0, 33)],
    "chunk": [(121, 19)],
    "mixed": [(300, 1), (0, 20), (5, 18), (12, 1)],
}
LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one head each": {"num_heads": 2},
    "five heads a group": {"num_heads": 10},
    "seven heads a group": {"num_heads": 7, "num_kv_heads": 1},
    "small heads": {"head_dim": 8},
    "large heads": {"head_dim": 256},
    "wide rows": {"head_dim": 80},
    "window": {"sliding_window": 9},
    "window of a block": {"sliding_window": 32},
    "soft cap": {"soft_cap": 0.7},
    "sinks": {"sinks": True},
    "narrow values": {"head_dim_v": 24},
    "all at once": {"sliding_window": 5, "soft_cap": 1.5, "sinks": True},
}


@pytest.fixture(scope="module")
def backend() -> NumbaPagedAttention:
    return NumbaPagedAttention()


def assert_right(case: AttentionCase, output: torch.Tensor, tolerance: float = 1e-5) -> None:
    expected = case.expected()
    assert torch.isfinite(output).all()
    torch.testing.assert_close(output[: len(expected)].double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("requests", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_equals_the_formula(
    backend: NumbaPagedAttention, requests: list[tuple[int, int]], layer: dict[str, Any]
) -> None:
    case = AttentionCase(requests, block_size=32, **layer)
    assert_right(case, case.run(backend, CpuIO()))


@pytest.mark.parametrize("requests", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 2e-2), ("float16", 2e-3)])
def test_half_precision_is_rounded_once(
    backend: NumbaPagedAttention, requests: list[tuple[int, int]], dtype: str, tolerance: float
) -> None:
    case = AttentionCase(requests, block_size=16, dtype=dtype, sinks=True, head_dim_v=48)
    output = case.run(backend, CpuIO())
    assert output.dtype is case.dtype
    assert_right(case, output, tolerance)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("window", [None, 40])
def test_every_block_size(backend: NumbaPagedAttention, block_size: int, window: int | None) -> None:
    case = AttentionCase(STEPS["mixed"], block_size=block_size, sliding_window=window)
    assert_right(case, case.run(backend, CpuIO()))


@pytest.mark.parametrize("layer", ["plain", "window", "sinks", "all at once"])
def test_a_long_context_is_divided_among_threads_and_joined(backend: NumbaPagedAttention, layer: str) -> None:
    case = AttentionCase([(1999, 1), (3, 1), (700, 1)], **LAYERS[layer])
    spans = {index: (cached, cached + new) for index, (cached, new) in enumerate(case.requests)}
    plan = backend.build_metadata(case.host_step(spans), 0, 16)["plan"]
    assert plan[1] >= 1  # merges
    assert_right(case, case.run(backend, CpuIO()))


def test_several_threads_work_on_one_step() -> None:
    """In a process of its own: here numba has one thread."""
    program = """
import numba, torch
torch.set_num_threads(3)
from core_engine.backends.cpu.attention import NumbaPagedAttention
from core_engine.backends.cpu.device_io import CpuIO
from core_engine.testing.attention_case import AttentionCase
backend = NumbaPagedAttention()
print(numba.get_num_threads())
for requests in ([(1999, 1), (3, 1), (700, 1)], [(300, 1), (0, 20), (5, 18), (12, 1)], [(0, 150)]):
    case = AttentionCase(requests, sliding_window=600)
    for _ in range(20):
        output = case.run(backend, CpuIO())[: len(case.expected())]
        torch.testing.assert_close(output.double(), case.expected(), atol=1e-5, rtol=1e-5)
"""
    variables = {**os.environ, "NUMBA_NUM_THREADS": "3", "OMP_NUM_THREADS": "3"}
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


@pytest.mark.parametrize("name", ["decodes", "mixed"])
def test_padding_rows_change_nothing_and_are_finite(backend: NumbaPagedAttention, name: str) -> None:
    case = AttentionCase(STEPS[name], pad=(64, 8), sinks=True)
    assert_right(case, case.run(backend, CpuIO()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("name", ["decodes", "mixed"])
def test_what_no_request_wrote_does_not_matter(
    backend: NumbaPagedAttention, dtype: str, window: int | None, name: str
) -> None:
    case = AttentionCase(STEPS[name], sliding_window=window, dtype=dtype)
    io = CpuIO()
    cache = case.allocate(backend, io)
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    case.write_past(backend, io, cache)
    assert_right(case, case.run_step(backend, io, cache), 1e-5 if dtype == "float32" else 2e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("window", [1, 6, 40])
@pytest.mark.parametrize("name", ["decodes", "mixed", "chunk"])
def test_case_15_what_lies_behind_the_window_is_never_read(
    backend: NumbaPagedAttention, dtype: str, window: int, name: str
) -> None:
    case = AttentionCase(STEPS[name], sliding_window=window, dtype=dtype)
    io = CpuIO()
    cache = case.allocate(backend, io)
    case.write_past(backend, io, cache)
    behind = case.blocks_behind_window()
    assert behind
    for tensor in (cache.keys, cache.values):
        tensor.view(case.num_blocks, -1)[behind] = torch.nan
    assert_right(case, case.run_step(backend, io, cache), 1e-5 if dtype == "float32" else 2e-2)


def test_one_plan_serves_all_groups_of_a_step(backend: NumbaPagedAttention) -> None:
    case = AttentionCase(STEPS["mixed"])
    step = case.host_step({0: (300, 301)})
    step = replace(step, slot_mapping=step.slot_mapping * 2, block_tables=step.block_tables * 2)
    first, second = (backend.build_metadata(step, group, 16)["plan"] for group in range(2))
    other = backend.build_metadata(case.host_step({1: (0, 20)}), 0, 16)["plan"]
    assert first is second
    assert other is not first


def test_a_layer_that_shares_a_cache_reads_it_and_writes_nothing(backend: NumbaPagedAttention) -> None:
    case = AttentionCase(STEPS["mixed"])
    io = CpuIO()
    cache = case.allocate(backend, io)
    case.write_past(backend, io, cache)
    owner = case.run_step(backend, io, cache)
    before = cache.keys.clone(), cache.values.clone()
    sharer = case.run_step(backend, io, cache, shares_cache=True)
    assert torch.equal(owner, sharer)
    assert torch.equal(before[0], cache.keys)
    assert torch.equal(before[1], cache.values)


def test_inputs_may_be_views_of_larger_tensors(backend: NumbaPagedAttention) -> None:
    case = AttentionCase(STEPS["mixed"])
    plain = case.run(backend, CpuIO())
    for tensors in (case.queries, case.keys, case.values):
        # [heads, tokens, dim] as the models have it, seen as [tokens, heads, dim].
        tensors[:] = [tensor.transpose(0, 1).contiguous().transpose(0, 1) for tensor in tensors]
    assert torch.equal(case.run(backend, CpuIO()), plain)


def test_a_page_is_counted_as_it_is_allocated(backend: NumbaPagedAttention) -> None:
    case = AttentionCase([(0, 1)], dtype="bfloat16", head_dim_v=24)
    cache: CpuKVCache = case.allocate(backend, CpuIO())
    allocated = sum(tensor.numel() * tensor.itemsize for tensor in (cache.keys, cache.values))
    assert allocated == case.num_blocks * backend.page_bytes(case.layer.spec, case.block_size)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_heads": 5}, "5 query heads do not divide among 2 K/V heads"),
        ({"head_dim": 33}, "head size 33 is odd"),
        ({"block_size": 24}, "block size 24 is none of 16, 32, 64, 128"),
    ],
)
def test_what_the_kernel_cannot_is_refused_with_the_reason(
    backend: NumbaPagedAttention, change: dict[str, Any], reason: str
) -> None:
    needs: dict[str, Any] = {
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 32,
        "head_dim_v": 32,
        "dtype": "float32",
        "block_size": 16,
    }
    assert backend.supports(AttentionNeeds(**needs)) is None
    assert backend.supports(AttentionNeeds(**{**needs, **change})) == reason
