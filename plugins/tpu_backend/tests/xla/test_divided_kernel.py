"""The attention kernel over four chips: each calls it for its own heads, and caches stay where they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from attention_graph import AttentionGraph
from core_engine_tpu.chips import parse_target
from core_engine_tpu.compiler_process import CompilerProcess
from core_engine_tpu.runtime_tracing import LoweredGraph, TracingRuntime
from divided_kernel_process import LAYER, NUM_DEVICES, NUM_LAYERS, trace_in_process

from core_engine.testing.attention_case import AttentionCase


@pytest.fixture(scope="module")
def compiler() -> Iterator[CompilerProcess]:
    with CompilerProcess(parse_target("v5e:2x2")) as process:
        yield process


def recorded() -> tuple[LoweredGraph, int]:
    """Return the graph as a compile check records it, and the bytes of its caches on each device."""
    runtime = TracingRuntime(NUM_DEVICES, 1 << 30)
    case = AttentionCase(**LAYER, device=runtime.device)
    with torch.no_grad():
        graph = AttentionGraph(runtime, case, NUM_LAYERS, "pallas")
        lowered = runtime.lower([graph.run(*graph.arguments)])
    return lowered, sum(cache.nbytes for cache in graph.caches) // NUM_DEVICES


def assert_divided(sizes: Any, cache_bytes: int) -> None:
    assert sizes.get("error") is None, sizes["error"]
    assert sizes["num_custom_calls"] == NUM_LAYERS
    assert sizes["alias_bytes"] == cache_bytes
    # A cache that was gathered, or copied, would be a temporary buffer.
    assert sizes["temp_bytes"] < cache_bytes / 10


def test_a_tpus_compiler_takes_what_a_compile_check_records(compiler: CompilerProcess) -> None:
    graph, cache_bytes = recorded()
    assert_divided(compiler.compile(graph), cache_bytes)


def test_and_what_an_engine_over_four_devices_traces(compiler: CompilerProcess) -> None:
    _, cache_bytes = recorded()
    assert_divided(compiler.compile(trace_in_process()), cache_bytes)
