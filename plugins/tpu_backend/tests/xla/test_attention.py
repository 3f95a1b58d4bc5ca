"""Which attention serves a model, and what is said about it."""

from __future__ import annotations

import sys
from typing import Any, cast

import pytest
import torch
from core_engine_tpu.attention import TpuAttention
from core_engine_tpu.runtime import XlaRuntime

from core_engine.plugin import BackendLoadError, UnsupportedFeature
from core_engine.plugin.runtime import AttentionNeeds
from core_engine.testing.attention_case import AttentionCase


class FakeRuntime(XlaRuntime):
    """An `XlaRuntime` that says it has a TPU, or that it has none; its device is never opened."""

    def __init__(self, *, is_tpu: bool) -> None:
        self.num_devices = 1
        self.is_tpu = is_tpu
        self.device = torch.device("cpu")


def attention(choice: str, *, is_tpu: bool = True, **limits: int) -> TpuAttention:
    sizes = {"max_num_seqs": 64, "max_model_len": 4096, **limits}
    return TpuAttention(FakeRuntime(is_tpu=is_tpu), choice, **sizes)


def needs(**change: Any) -> AttentionNeeds:
    asked: dict[str, Any] = {
        "num_heads": 9,
        "num_kv_heads": 3,
        "head_dim": 64,
        "head_dim_v": 64,
        "dtype": "bfloat16",
        "block_size": 16,
    }
    return AttentionNeeds(**{**asked, **change})


@pytest.mark.parametrize(
    ("choice", "is_tpu", "name"),
    [
        ("auto", True, "xla-pallas"),
        ("auto", False, "xla-dense"),
        ("dense", True, "xla-dense"),
        ("pallas", True, "xla-pallas"),
    ],
)
def test_the_option_and_the_device_decide(choice: str, is_tpu: bool, name: str) -> None:
    backend = attention(choice, is_tpu=is_tpu)
    assert backend.supports(needs()) is None
    assert backend.name == name


def test_the_kernel_without_a_tpu_is_an_error() -> None:
    with pytest.raises(UnsupportedFeature, match="attention=pallas: the kernel runs on a TPU"):
        attention("pallas", is_tpu=False)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sinks": True}, "the kernel has no attention sinks"),
        ({"head_dim": 256, "head_dim_v": 256}, "wider than 128 in bfloat16 with a single K/V head only"),
        ({"num_heads": 8, "num_kv_heads": 8, "dtype": "float32"}, "no tiles for 8 query and 8 K/V heads"),
        ({"block_size": 1}, "block tables of 64 requests with 4096 blocks each"),
    ],
)
def test_one_layer_that_the_kernel_cannot_serve_makes_the_model_dense(
    change: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    backend = attention("auto")
    for layer in (needs(), needs(**change), needs(**change), needs()):
        assert backend.supports(layer) is None
    assert backend.name == "xla-dense"
    (record,) = caplog.records
    assert record.message.startswith("attention is dense")
    assert reason in record.message
    assert reason in (attention("pallas").supports(needs(**change)) or "")


@pytest.mark.parametrize("choice", ["auto", "dense", "pallas"])
def test_heads_that_do_not_divide_are_refused_everywhere(choice: str) -> None:
    refusal = attention(choice).supports(needs(num_heads=10))
    assert refusal == "10 query heads do not divide among 3 K/V heads"


def test_a_missing_jax_is_an_error_with_the_line_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(BackendLoadError, match=r"pip install 'core-engine\[tpu\]'"):
        attention("auto")
    attention("dense")
    attention("auto", is_tpu=False)


def test_a_page_counts_what_a_tpus_tiles_leave_empty_whatever_attention_serves() -> None:
    spec = AttentionCase([(0, 1)], num_heads=9, num_kv_heads=3, head_dim=64, dtype="bfloat16").layer.spec
    assert attention("pallas").page_bytes(spec, 16) == 16 * 2 * 4 * 128 * 2
    assert attention("dense").page_bytes(spec, 16) == 16 * 2 * 4 * 128 * 2
    assert attention("dense", is_tpu=False).page_bytes(spec, 16) == 16 * 2 * 3 * 64 * 2


def test_metadata_shapes_depend_on_the_padded_shape_only() -> None:

    backend = attention("pallas")
    for window in (None, 9):
        backend.supports(needs(sliding_window=window))
    shapes = []
    for requests in ([(3, 1), (0, 9)], [(0, 20), (2, 30), (7, 4)]):
        case = AttentionCase(requests, pad=(64, 8))
        spans = {i: (cached, cached + new) for i, (cached, new) in enumerate(case.requests)}
        metadata = backend.build_metadata(case.host_step(spans, case.pad), 0, 16)
        shapes.append({name: array.shape for name, array in metadata.items() if "page" not in name})
        assert {str(array.dtype) for name, array in metadata.items() if name != "is_token"} == {"int32"}
    assert shapes[0] == shapes[1]
    assert cast(Any, metadata["num_seqs"]).tolist() == [3]
