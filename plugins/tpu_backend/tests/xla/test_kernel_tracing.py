"""The attention kernel is traced on a machine without a TPU, into the call that a TPU's compiler reads."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_xla.core.xla_model as xm
from attention_graph import AttentionGraph, TpuStandIn
from core_engine_tpu.chips import parse_target
from core_engine_tpu.compiler_process import CompilerProcess
from core_engine_tpu.pallas_kernel import KernelCall, lower_kernel
from core_engine_tpu.runtime import XlaRuntime
from core_engine_tpu.runtime_tracing import TracingRuntime

from core_engine.testing.attention_case import AttentionCase

NUM_LAYERS = 2


@pytest.fixture(scope="module")
def tpu_stand_in() -> TpuStandIn:
    return TpuStandIn()


def graph_of(runtime: XlaRuntime, **layer: Any) -> AttentionGraph:
    settings: dict[str, Any] = {"requests": [(30, 1), (0, 9)], "device": runtime.device, **layer}
    case = AttentionCase(**settings)
    return AttentionGraph(runtime, case, NUM_LAYERS, "pallas")


def test_dynamo_traces_one_whole_graph_with_one_call_a_layer(tpu_stand_in: TpuStandIn) -> None:
    graph = graph_of(tpu_stand_in, num_heads=9, num_kv_heads=3, head_dim=64, dtype="bfloat16", pad=(16, 4))
    traced: list[torch.fx.GraphModule] = []

    def record(module: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        traced.append(module)
        return module.forward

    with torch.no_grad():
        compiled = torch.compile(graph.run, backend=record, fullgraph=True, dynamic=False)
        result = compiled(*graph.arguments)
    (module,) = traced
    kernel = torch.ops.core_engine_tpu.ragged_paged_attention
    assert [node.target for node in module.graph.nodes].count(kernel) == NUM_LAYERS
    text = xm.get_stablehlo([result, *graph.caches])
    assert text.count("@tpu_custom_call") == NUM_LAYERS
    assert text.count('"stablehlo.scatter"') == NUM_LAYERS
    # Padded: 9 heads of 64 in groups of 3 to 12 of 128, 3 K/V heads to 4.
    assert "tensor<16x12x128xbf16>" in text
    assert "16x8x128xbf16>" in text


def call(**change: Any) -> KernelCall:
    settings: dict[str, Any] = {
        "queries": (16, 4, 128),
        "pages": (8, 16, 4, 128),
        "tables": (4, 8),
        "dtype": "bfloat16",
        "scale": 0.125,
        "sliding_window": None,
        "soft_cap": None,
        "pages_at_once": 4,
        "queries_at_once": 16,
    }
    return KernelCall(**{**settings, **change})


def test_equal_calls_are_lowered_once() -> None:
    lower_kernel(call())
    before = lower_kernel.cache_info()
    lower_kernel(call())
    after = lower_kernel.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)


@pytest.mark.parametrize(
    "change",
    [{"scale": 0.25}, {"sliding_window": 9}, {"soft_cap": 2.0}, {"pages_at_once": 2}, {"dtype": "float32"}],
    ids=lambda change: next(iter(change)),
)
def test_whatever_is_constant_is_part_of_the_payload(change: dict[str, Any]) -> None:
    assert lower_kernel(call(**change)) != lower_kernel(call())


def test_lowering_leaves_the_tpu_to_torch_xla_and_is_quiet() -> None:
    import jax

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        payload = lower_kernel(call(scale=0.5))
    assert payload.startswith('{"custom_call_config": {"body": "')
    assert {device.platform for device in jax.devices()} == {"cpu"}
    assert jax.config.jax_platforms is None


@pytest.mark.parametrize("target", ["v5e:1x1", "v6e:1x1"])
def test_a_tpus_compiler_takes_the_graphs_and_copies_no_cache(target: str) -> None:
    runtime = TracingRuntime(1, 1 << 30)
    layers: dict[str, dict[str, Any]] = {
        "padded heads": {"num_heads": 9, "num_kv_heads": 3, "head_dim": 64, "dtype": "bfloat16"},
        "one wide head": {"num_heads": 4, "num_kv_heads": 1, "head_dim": 256, "dtype": "bfloat16"},
        "soft cap": {"num_heads": 4, "num_kv_heads": 2, "dtype": "bfloat16", "soft_cap": 3.0},
        "window in float32": {"num_heads": 8, "num_kv_heads": 4, "dtype": "float32", "sliding_window": 9},
        "one token": {"num_heads": 4, "num_kv_heads": 2, "dtype": "bfloat16", "requests": [(20, 1)]},
    }
    with CompilerProcess(parse_target(target)) as compiler, torch.no_grad():
        for name, layer in layers.items():
            graph = graph_of(runtime, spare_blocks=2000, **layer)
            cache_bytes = sum(cache.nbytes for cache in graph.caches)
            sizes = compiler.compile(runtime.lower([graph.run(*graph.arguments)]))
            assert sizes.get("error") is None, name
            assert sizes["num_custom_calls"] == NUM_LAYERS, name
            assert sizes["alias_bytes"] == cache_bytes, name
            assert sizes["temp_bytes"] < cache_bytes / 10, name
