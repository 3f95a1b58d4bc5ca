"""The attention kernel, fed with exactly what the backend prepares, is held to the formula."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from core_engine_tpu.dense import DenseAttention
from core_engine_tpu.kv_layout import kernel_layout
from core_engine_tpu.pallas import PallasAttention
from core_engine_tpu.runtime import XlaRuntime
from kernel_interpreter import InterpretingRuntime

from core_engine.backends.cpu.device_io import CpuIO
from core_engine.plugin.runtime import AttentionNeeds
from core_engine.testing.attention_case import AttentionCase

RUNTIME = cast(XlaRuntime, InterpretingRuntime())
DECODES = [(7, 1), (0, 1), (40, 1)]
MIXED = [(30, 1), (0, 20), (5, 9)]


def kernel_for(case: AttentionCase) -> PallasAttention:
    """Return the backend, asked for the case's layer as a runner asks."""
    spec = case.layer.spec
    backend = PallasAttention(RUNTIME, max_num_seqs=8, max_model_len=64)
    needs = AttentionNeeds(
        num_heads=case.layer.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        head_dim_v=spec.head_dim_v,
        dtype=spec.dtype,
        block_size=case.block_size,
        sliding_window=spec.sliding_window,
        soft_cap=case.layer.soft_cap,
    )
    assert backend.supports(needs) is None
    return backend


def run(case: AttentionCase) -> torch.Tensor:
    """Compute the step by the kernel, over a past that the dense backend wrote: the interpreter is slow."""
    backend, dense, io = kernel_for(case), DenseAttention(kernel_layout), CpuIO()
    cache = case.allocate(backend, io)
    case.write_past(dense, io, cache)
    return case.run_step(backend, io, cache)


def assert_right(case: AttentionCase, output: torch.Tensor) -> None:
    tolerance = 2e-2 if case.dtype is torch.bfloat16 else 1e-5
    expected = case.expected()
    assert torch.isfinite(output).all()
    torch.testing.assert_close(output[: len(expected)].double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("requests", [DECODES, MIXED], ids=["decodes", "mixed"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "layer",
    [
        {"num_heads": 4, "num_kv_heads": 2, "head_dim": 128},
        {"num_heads": 9, "num_kv_heads": 3, "head_dim": 64},
        {"num_heads": 2, "num_kv_heads": 1, "head_dim": 64, "head_dim_v": 48},
    ],
    ids=["two heads of 128", "three heads of 64", "narrow values"],
)
def test_equals_the_formula(requests: list[tuple[int, int]], dtype: str, layer: dict[str, Any]) -> None:
    case = AttentionCase(requests, dtype=dtype, **layer)
    assert_right(case, run(case))


@pytest.mark.parametrize("window", [1, 6, 17])
def test_a_window_counts_as_core_counts_it(window: int) -> None:
    case = AttentionCase(MIXED, sliding_window=window)
    assert_right(case, run(case))


def test_soft_cap_and_window_together() -> None:
    case = AttentionCase(MIXED, sliding_window=9, soft_cap=0.7)
    assert_right(case, run(case))


def test_padding_rows_are_finite_and_change_nothing() -> None:
    case = AttentionCase(MIXED, pad=(64, 6))
    assert_right(case, run(case))


@pytest.mark.parametrize("window", [None, 6])
def test_what_lies_elsewhere_is_never_read(window: int | None) -> None:
    case = AttentionCase([(40, 3), (17, 1)], sliding_window=window)
    backend, dense, io = kernel_for(case), DenseAttention(kernel_layout), CpuIO()
    cache = case.allocate(backend, io)
    cache[1:].fill_(torch.nan)
    case.write_past(dense, io, cache)
    cache[case.blocks_behind_window()] = torch.nan
    assert_right(case, case.run_step(backend, io, cache))


def test_the_dense_fallback_reads_and_writes_the_same_cache() -> None:
    case = AttentionCase(MIXED, num_heads=9, num_kv_heads=3, head_dim=64)
    kernel, dense, io = kernel_for(case), DenseAttention(kernel_layout), CpuIO()
    cache = case.allocate(dense, io)
    case.write_past(dense, io, cache)
    written_densely = cache.clone()
    by_kernel = case.run_step(kernel, io, cache)
    densely = case.run_step(dense, io, written_densely)
    torch.testing.assert_close(by_kernel, densely, atol=1e-5, rtol=1e-5)
    assert torch.equal(cache[1:], written_densely[1:])
