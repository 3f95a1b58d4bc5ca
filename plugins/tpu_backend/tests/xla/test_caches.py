"""The caches are overwritten in place (case 7)."""

from __future__ import annotations

import re

import torch
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from attention_graph import AttentionGraph
from core_engine_tpu.runtime import XlaRuntime
from xla_engine import runner_of

from core_engine import LLM
from core_engine.testing.attention_case import AttentionCase

NUM_LAYERS = 3


def num_aliases() -> float:
    """Return how many inputs of all graphs compiled so far share their memory with an output."""
    data = met.metric_data("InputOutputAliasCount")
    return 0.0 if data is None else data[1]


def test_case_07_a_graph_takes_over_the_memory_of_every_cache_that_it_writes(runtime: XlaRuntime) -> None:
    case = AttentionCase([(20, 3), (5, 1)], device=runtime.device)
    graph = AttentionGraph(runtime, case, NUM_LAYERS, "dense")
    before = num_aliases()
    with torch.no_grad():
        runtime.compile(graph.run)(*graph.arguments)
    assert num_aliases() - before == NUM_LAYERS


def test_case_07_a_single_row_is_scattered_as_two(runtime: XlaRuntime) -> None:
    # One would be written on a copy of the whole cache by the CPU compiler of XLA.
    case = AttentionCase([(20, 1)], device=runtime.device)
    graph = AttentionGraph(runtime, case, 1, "dense")
    with torch.no_grad():
        text = xm.get_stablehlo([graph.run(*graph.arguments), *graph.caches])
    (rows,) = re.findall(r"\}\) : \(tensor<\d+x4x32xf32>, tensor<2x1xi\d+>, tensor<(\d+)x4x32xf32>\)", text)
    assert rows == "2"


def test_each_layer_of_an_engine_has_one_cache(tpu: LLM) -> None:
    caches = [layer.cache for layer in runner_of(tpu).layers.values()]
    assert [tuple(cache.shape[1:]) for cache in caches] == [(16, 2 * 2, 16)] * 4
    assert len(set(map(id, caches))) == 4
