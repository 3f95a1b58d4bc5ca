"""Graphs of four chips, compiled for them: what is divided stays where it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from attention_graph import AttentionGraph
from core_engine_tpu.chips import parse_target
from core_engine_tpu.compiler_process import CompilerProcess
from core_engine_tpu.runtime_tracing import LoweredGraph, TracingRuntime
from core_engine_tpu.weights import place_weights
from divided_kernel_process import LAYER, NUM_DEVICES, NUM_LAYERS, trace_in_process

from core_engine.testing.attention_case import AttentionCase


@pytest.fixture(scope="module")
def compiler() -> Iterator[CompilerProcess]:
    with CompilerProcess(parse_target("v5e:2x2"), NUM_DEVICES) as process:
        yield process


def recorded() -> tuple[LoweredGraph, int]:
    """Return the graph as a compile check records it, and the bytes of its caches on each device."""
    runtime = TracingRuntime(NUM_DEVICES, 1 << 30)
    case = AttentionCase(**LAYER, device=runtime.device)
    with torch.no_grad():
        graph = AttentionGraph(runtime, case, NUM_LAYERS, "pallas")
        lowered = runtime.lower([graph.run(*graph.arguments)])
    return lowered, sum(cache.nbytes for cache in graph.caches) // NUM_DEVICES


class Head(torch.nn.Module):
    """A head of 1 GiB that has no memory, with a plan as transformers writes it."""

    tp_plan: ClassVar = {"lm_head": "colwise_gather_output"}

    def __init__(self) -> None:
        super().__init__()
        self.lm_head = torch.nn.Linear(4096, 128256, bias=False, device="meta", dtype=torch.bfloat16)

    def get_output_embeddings(self) -> torch.nn.Linear:
        return self.lm_head


def assert_divided(sizes: Any, cache_bytes: int) -> None:
    assert sizes.get("error") is None, sizes["error"]
    assert sizes["num_custom_calls"] == NUM_LAYERS
    assert sizes["alias_bytes"] == cache_bytes
    # A cache that was gathered, or copied, would be a temporary buffer.
    assert sizes["temp_bytes"] < cache_bytes / 10


def test_each_chip_calls_the_attention_kernel_for_its_own_heads(compiler: CompilerProcess) -> None:
    graph, cache_bytes = recorded()
    assert_divided(compiler.compile(graph), cache_bytes)


def test_so_it_does_in_a_graph_as_an_engine_traces_it(compiler: CompilerProcess) -> None:
    _, cache_bytes = recorded()
    assert_divided(compiler.compile(trace_in_process()), cache_bytes)


def test_logits_are_gathered_and_not_the_matrix_that_makes_them(compiler: CompilerProcess) -> None:
    runtime, model = TracingRuntime(NUM_DEVICES, 1 << 30), Head()
    weights = place_weights(model, runtime)
    assert weights.divided_share == 1.0
    with torch.no_grad():
        hidden = runtime.placeholder((16, 4096), torch.bfloat16)
        logits = model.lm_head(hidden)
        sizes = compiler.compile(runtime.lower([logits]))
    assert sizes.get("error") is None, sizes["error"]
    assert sizes["argument_bytes"] < weights.device_bytes * 1.1
    assert sizes["temp_bytes"] < weights.device_bytes / 2
