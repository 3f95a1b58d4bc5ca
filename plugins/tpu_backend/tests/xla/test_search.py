"""The loops that XLA runs find what their definitions for the host find."""

from __future__ import annotations

import pytest
import torch
from core_engine_tpu.runtime import XlaRuntime
from core_engine_tpu.runtime_search import LOWEST, float_order, largest_ids, largest_threshold

INFINITY = float("inf")


def rows(width: int) -> torch.Tensor:
    logits = (torch.randn(6, width, generator=torch.Generator().manual_seed(width)) * 3).round(decimals=1)
    logits[1] = -INFINITY
    logits[2, ::2] = 0.0
    logits[2, 1::2] = -0.0
    logits[3, width // 2] = INFINITY
    return logits


def test_the_order_of_floats(runtime: XlaRuntime) -> None:
    floats = torch.tensor([[-INFINITY, -3.5, -2e-38, -0.0, 0.0, 2e-38, 2.0, INFINITY, float("nan")]])
    with torch.no_grad():
        order = runtime.compile(float_order)(runtime.upload(floats)).cpu()
    assert torch.equal(order, float_order(floats))
    assert order[0, 0] > LOWEST
    assert order[0, 3] == order[0, 4]
    assert torch.equal(order[0].sort().values, order[0])


@pytest.mark.parametrize("width", [1, 9, 500])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_largest_ids(runtime: XlaRuntime, width: int, count: int) -> None:
    order, count = float_order(rows(width)), min(count, width)
    with torch.no_grad():
        found = runtime.compile(largest_ids)(runtime.upload(order), count)
    assert torch.equal(found.cpu(), largest_ids(order, count))


@pytest.mark.parametrize("width", [1, 9, 500])
@pytest.mark.parametrize("target", [1.0, 4.0, 1000.0])
def test_the_largest_threshold(runtime: XlaRuntime, width: int, target: float) -> None:
    order = float_order(rows(width))
    arguments = (order, torch.ones_like(order, dtype=torch.float32), torch.full((6,), target))
    with torch.no_grad():
        found = runtime.compile(largest_threshold)(*map(runtime.upload, arguments))
    assert torch.equal(found.cpu(), largest_threshold(*arguments))
