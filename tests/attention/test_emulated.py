"""Chunks emulated over a dense kernel are held to the formula, wherever a prompt is split."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core_engine.attention.base import AttentionNeeds
from core_engine.attention.dense import TorchDenseKernel
from core_engine.attention.emulated import EmulatedChunkedPrefill
from core_engine.backends.cpu.device_io import CpuIO
from core_engine.testing.attention_case import AttentionCase
from core_engine.worker.shape_policy import StepKind, StepShape

STEPS = {
    "one decode": [(7, 1)],
    "decodes": [(0, 1), (15, 1), (16, 1), (40, 1)],
    "prefill": [(0, 37)],
    "long prefill": [(0, 300)],
    "prefills": [(0, 16), (0, 1), (0, 33)],
    "chunk": [(21, 19)],
    "mixed": [(30, 1), (0, 20), (5, 18), (12, 1)],
}
LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one head each": {"num_heads": 2},
    "many heads a group": {"num_heads": 12},
    "window": {"sliding_window": 9},
    "narrow values": {"head_dim_v": 16},
}


def emulated(**settings: Any) -> EmulatedChunkedPrefill:
    return EmulatedChunkedPrefill(TorchDenseKernel(), **settings)


def assert_right(case: AttentionCase, output: torch.Tensor, tolerance: float = 1e-5) -> None:
    expected = case.expected()
    assert torch.isfinite(output).all()
    torch.testing.assert_close(output[: len(expected)].double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("requests", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_equals_the_formula(requests: list[tuple[int, int]], layer: dict[str, Any]) -> None:
    case = AttentionCase(requests, **layer)
    assert_right(case, case.run(emulated(), CpuIO()))


@pytest.mark.parametrize("layer", [LAYERS["plain"], LAYERS["window"]], ids=["plain", "window"])
def test_every_split_point_of_a_prompt_gives_the_same_rows(layer: dict[str, Any]) -> None:
    length = 37
    whole = AttentionCase([(0, length)], **layer)
    rows = whole.run(emulated(), CpuIO())
    for split in range(1, length):
        case = AttentionCase([(split, length - split)], **layer)
        case.queries = [whole.queries[0][split:]]
        case.keys, case.values = whole.keys, whole.values
        torch.testing.assert_close(case.run(emulated(), CpuIO()), rows[split:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 2e-2), ("float16", 2e-3)])
def test_half_precision(dtype: str, tolerance: float) -> None:
    case = AttentionCase(STEPS["mixed"], dtype=dtype)
    output = case.run(emulated(), CpuIO())
    assert output.dtype is case.dtype
    assert_right(case, output, tolerance)


@pytest.mark.parametrize("block_size", [1, 8, 64])
def test_any_block_size(block_size: int) -> None:
    case = AttentionCase(STEPS["mixed"], block_size=block_size)
    assert_right(case, case.run(emulated(), CpuIO()))


@pytest.mark.parametrize("settings", [{"scratch_bytes": 1}, {"trim_context": True}], ids=str)
@pytest.mark.parametrize("name", ["decodes", "mixed"])
def test_little_scratch_memory_and_a_trimmed_context_change_nothing(
    name: str, settings: dict[str, Any]
) -> None:
    case = AttentionCase(STEPS[name])
    assert_right(case, case.run(emulated(**settings), CpuIO()))


@pytest.mark.parametrize("name", ["decodes", "mixed"])
def test_padding_changes_nothing_and_is_finite(name: str) -> None:
    case = AttentionCase(STEPS[name], pad=(64, 8))
    assert_right(case, case.run(emulated(), CpuIO()))


class FiniteKernel(TorchDenseKernel):
    """Holds its caller to the contract."""

    def attend(self, query: Any, keys: Any, values: Any, lengths: Any, **constants: Any) -> torch.Tensor:
        assert torch.isfinite(keys).all()
        assert torch.isfinite(values).all()
        return super().attend(query, keys, values, lengths, **constants)


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("name", ["decodes", "mixed"])
def test_what_no_request_wrote_never_reaches_the_kernel(name: str, window: int | None) -> None:
    case = AttentionCase(STEPS[name], sliding_window=window, pad=(48, 6))
    backend, io = EmulatedChunkedPrefill(FiniteKernel()), CpuIO()
    cache = case.allocate(backend, io)
    for tensor in cache:
        tensor.fill_(torch.nan)
    case.write_past(backend, io, cache)
    assert_right(case, case.run_step(backend, io, cache))


def test_what_lies_behind_the_window_never_reaches_the_kernel() -> None:
    case = AttentionCase([(40, 5), (30, 1), (17, 20)], sliding_window=6, block_size=1)
    backend, io = EmulatedChunkedPrefill(FiniteKernel()), CpuIO()
    cache = case.allocate(backend, io)
    case.write_past(backend, io, cache)
    for blocks, (cached, _) in zip(case.block_ids, case.requests, strict=True):
        for tensor in cache:
            tensor[blocks[: cached - 5].tolist()] = torch.nan
    assert_right(case, case.run_step(backend, io, cache))


def test_a_layer_that_shares_a_cache_reads_it_and_writes_nothing() -> None:
    case = AttentionCase(STEPS["mixed"])
    backend, io = emulated(), CpuIO()
    cache = case.allocate(backend, io)
    case.write_past(backend, io, cache)
    owner = case.run_step(backend, io, cache)
    before = [tensor.clone() for tensor in cache]
    assert torch.equal(owner, case.run_step(backend, io, cache, shares_cache=True))
    assert all(torch.equal(old, new) for old, new in zip(before, cache, strict=True))


@pytest.mark.parametrize(
    ("num_tokens", "num_reqs", "width"), [(16, 16, 16), (256, 64, 16), (200, 4, 64), (4096, 1, 128)]
)
def test_the_width_of_tiles_follows_from_the_padded_shape(num_tokens: int, num_reqs: int, width: int) -> None:
    assert emulated().tile_width(StepShape(num_tokens, num_reqs, StepKind.MIXED)) == width


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_heads": 5}, "5 query heads do not divide among 2 K/V heads"),
        ({"soft_cap": 1.5}, "torch's scaled_dot_product_attention has no soft cap"),
        ({"sinks": True}, "torch's scaled_dot_product_attention has no sinks"),
        (
            {"soft_cap": 1.5, "sinks": True},
            "torch's scaled_dot_product_attention has no soft cap and no sinks",
        ),
    ],
)
def test_what_the_kernel_cannot_is_refused_with_the_reason(change: dict[str, Any], reason: str) -> None:
    needs: dict[str, Any] = {
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 32,
        "head_dim_v": 32,
        "dtype": "float32",
        "block_size": 16,
        "sliding_window": 9,
    }
    assert emulated().supports(AttentionNeeds(**needs)) is None
    assert emulated().supports(AttentionNeeds(**{**needs, **change})) == reason
