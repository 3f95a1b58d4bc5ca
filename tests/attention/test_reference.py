"""The reference is held to the formula, in every kind of step and layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core_engine.attention.base import AttentionNeeds
from core_engine.attention.reference import ReferencePagedAttention
from core_engine.backends.cpu.device_io import CpuIO
from core_engine.testing.attention_case import AttentionCase

STEPS = {
    "one decode": [(7, 1)],
    "decodes": [(0, 1), (15, 1), (16, 1), (40, 1)],
    "prefill": [(0, 37)],
    "prefills": [(0, 16), (0, 1), (0, 33)],
    "chunk": [(21, 19)],
    "mixed": [(30, 1), (0, 20), (5, 18), (12, 1)],
}
LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one head each": {"num_heads": 2},
    "many heads a group": {"num_heads": 12},
    "window": {"sliding_window": 9},
    "soft cap": {"soft_cap": 0.7},
    "sinks": {"sinks": True},
    "narrow values": {"head_dim_v": 16},
    "all at once": {"sliding_window": 5, "soft_cap": 1.5, "sinks": True},
}


@pytest.mark.parametrize("requests", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_equals_the_formula(requests: list[tuple[int, int]], layer: dict[str, Any]) -> None:
    case = AttentionCase(requests, **layer)
    output = case.run(ReferencePagedAttention(), CpuIO())
    torch.testing.assert_close(output.double(), case.expected(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 2e-2), ("float16", 2e-3)])
def test_half_precision_is_rounded_once(dtype: str, tolerance: float) -> None:
    case = AttentionCase(STEPS["mixed"], dtype=dtype)
    output = case.run(ReferencePagedAttention(), CpuIO())
    assert output.dtype is case.dtype
    torch.testing.assert_close(output.double(), case.expected(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("block_size", [1, 8, 64])
def test_any_block_size(block_size: int) -> None:
    case = AttentionCase(STEPS["mixed"], block_size=block_size)
    output = case.run(ReferencePagedAttention(), CpuIO())
    torch.testing.assert_close(output.double(), case.expected(), atol=1e-5, rtol=1e-5)


def test_little_scratch_memory_changes_nothing() -> None:
    case = AttentionCase(STEPS["mixed"])
    roomy = case.run(ReferencePagedAttention(), CpuIO())
    tight = case.run(ReferencePagedAttention(scratch_bytes=1), CpuIO())
    torch.testing.assert_close(tight, roomy)


@pytest.mark.parametrize("name", ["decodes", "mixed"])
def test_trimmed_context_changes_nothing(name: str) -> None:
    case = AttentionCase(STEPS[name])
    output = case.run(ReferencePagedAttention(trim_context=True), CpuIO())
    torch.testing.assert_close(output.double(), case.expected(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["decodes", "mixed"])
def test_padding_changes_nothing_and_is_finite(name: str) -> None:
    case = AttentionCase(STEPS[name], pad=(64, 8), sinks=True)
    output = case.run(ReferencePagedAttention(), CpuIO())
    torch.testing.assert_close(output.double(), case.expected(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 6])
def test_what_no_request_wrote_does_not_matter(window: int | None) -> None:
    case = AttentionCase(STEPS["mixed"], sliding_window=window, pad=(48, 6))
    backend, io = ReferencePagedAttention(), CpuIO()
    cache = case.allocate(backend, io)
    for tensor in cache:
        tensor.fill_(torch.nan)
    case.write_past(backend, io, cache)
    output = case.run_step(backend, io, cache)
    assert torch.isfinite(output).all()
    torch.testing.assert_close(output[:40].double(), case.expected(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("trim_context", [False, True])
@pytest.mark.parametrize("window", [1, 6, 15])
def test_case_15_what_lies_behind_the_window_is_never_read(window: int, trim_context: bool) -> None:
    case = AttentionCase(STEPS["mixed"], sliding_window=window)
    backend, io = ReferencePagedAttention(trim_context=trim_context), CpuIO()
    cache = case.allocate(backend, io)
    case.write_past(backend, io, cache)
    behind = case.blocks_behind_window()
    assert behind
    for tensor in cache:
        tensor[behind] = torch.nan
    output = case.run_step(backend, io, cache)
    torch.testing.assert_close(output.double(), case.expected(), atol=1e-5, rtol=1e-5)


def test_a_layer_that_shares_a_cache_reads_it_and_writes_nothing() -> None:
    case = AttentionCase(STEPS["mixed"])
    backend, io = ReferencePagedAttention(), CpuIO()
    cache = case.allocate(backend, io)
    case.write_past(backend, io, cache)
    owner = case.run_step(backend, io, cache)
    before = [tensor.clone() for tensor in cache]
    sharer = case.run_step(backend, io, cache, shares_cache=True)
    assert torch.equal(owner, sharer)
    assert all(torch.equal(old, new) for old, new in zip(before, cache, strict=True))


def test_metadata_shapes_depend_on_the_padded_shape_only() -> None:
    few = AttentionCase([(3, 1), (0, 9)], pad=(64, 8))
    many = AttentionCase([(0, 20), (2, 30), (7, 4), (0, 1)], pad=(64, 8))
    shapes = []
    for case in (few, many):
        spans = {i: (cached, cached + new) for i, (cached, new) in enumerate(case.requests)}
        metadata = ReferencePagedAttention().build_metadata(case.host_step(spans, case.pad), 0, 16)
        shapes.append({k: v.shape for k, v in metadata.items() if k != "block_tables"})
    assert shapes[0] == shapes[1]


def test_a_page_is_counted_as_it_is_allocated() -> None:
    case = AttentionCase([(0, 1)], dtype="bfloat16", head_dim_v=16)
    backend = ReferencePagedAttention()
    cache = case.allocate(backend, CpuIO())
    allocated = sum(tensor.numel() * tensor.itemsize for tensor in cache)
    assert allocated == case.num_blocks * backend.page_bytes(case.layer.spec, case.block_size)


def test_heads_that_do_not_divide_are_refused_with_the_reason() -> None:
    needs = AttentionNeeds(
        num_heads=5, num_kv_heads=2, head_dim=32, head_dim_v=32, dtype="float32", block_size=16
    )
    assert ReferencePagedAttention().supports(needs) == "5 query heads do not divide among 2 K/V heads"
