"""Runs an `AttentionCase` through the kernels: in Triton's interpreter where it is on, else on a GPU."""

from __future__ import annotations

import os
from typing import Any

import torch
from core_engine_cuda.attention import TritonPagedAttention

from core_engine.backends.cpu.device_io import CpuIO
from core_engine.plugin.runtime import AttentionNeeds, DeviceStep, HostStep, upload_each
from core_engine.testing.attention_case import AttentionCase

__all__ = [
    "DEVICE",
    "DTYPES",
    "assert_right",
    "backend_for",
    "io",
    "make_case",
    "needs_of",
    "run",
    "write_past",
]

DEVICE = "cuda" if torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1" else "cpu"
#: dtype → how far from the formula the outputs may be. The interpreter multiplies bfloat16 wrongly.
DTYPES = {"float32": 1e-5, "float16": 2e-3} | ({} if DEVICE == "cpu" else {"bfloat16": 2e-2})


class PlainIO(CpuIO):
    """Copies array by array to the device, and allocates there."""

    def upload(self, step: HostStep) -> DeviceStep:
        return upload_each(step, lambda array: torch.from_numpy(array.copy()).to(DEVICE))

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=DEVICE)


io = PlainIO()


class PastWriter(TritonPagedAttention):
    """Writes what a step brings and attends to nothing: the past of a case, without its cost."""

    def forward(
        self, layer: Any, query: Any, key: Any, value: Any, cache: Any, metadata: Any, *_: Any
    ) -> Any:
        self.write(layer.spec, key, value, cache, metadata["slots"])
        return query


def make_case(requests: list[tuple[int, int]], **settings: Any) -> AttentionCase:
    """Make a case on the device of these tests."""
    return AttentionCase(requests, device=DEVICE, **settings)


def needs_of(case: AttentionCase) -> AttentionNeeds:
    """Return what the case's layer asks."""
    layer, spec = case.layer, case.layer.spec
    return AttentionNeeds(
        num_heads=layer.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        head_dim_v=spec.head_dim_v,
        dtype=spec.dtype,
        block_size=case.block_size,
        sliding_window=spec.sliding_window,
        soft_cap=layer.soft_cap,
        sinks=case.sinks is not None,
    )


def backend_for(
    case: AttentionCase, *, num_sms: int = 2, kind: type[TritonPagedAttention] = TritonPagedAttention
) -> TritonPagedAttention:
    """Make a backend that was asked about the case's layer."""
    major = 9 if DEVICE == "cpu" else torch.cuda.get_device_capability()[0]
    backend = kind(num_sms=num_sms, major=major)
    assert backend.supports(needs_of(case)) is None
    return backend


def write_past(case: AttentionCase, cache: Any) -> None:
    """Let the cache hold every request's past."""
    case.write_past(backend_for(case, kind=PastWriter), io, cache)


def run(case: AttentionCase, *, num_sms: int = 2) -> torch.Tensor:
    """Return the step's output, padding rows included."""
    backend = backend_for(case, num_sms=num_sms)
    cache = case.allocate(backend, io)
    write_past(case, cache)
    return case.run_step(backend, io, cache)


def assert_right(case: AttentionCase, output: torch.Tensor) -> None:
    """Hold the output's real rows to the formula, and all rows to be finite."""
    expected, tolerance = case.expected(), DTYPES[case.layer.spec.dtype]
    assert output.dtype is case.dtype
    assert torch.isfinite(output).all()
    torch.testing.assert_close(output[: len(expected)].double(), expected, atol=tolerance, rtol=tolerance)
