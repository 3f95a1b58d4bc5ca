"""Layers are found by running the model without weights; what the engine cannot compute is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core_engine.errors import UnsupportedModel
from core_engine.models.build import build_meta_model
from core_engine.models.causal_lm import text_causal_lm
from core_engine.models.finder import Findings, find_layers
from core_engine.testing.tiny_models import make_tiny_config

#: The scale of the rotary embedding follows the longest position in the batch.
LONGROPE_BY_BATCH = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "short_mscale": 1.25,
    "long_mscale": 1.5,
    "original_max_position_embeddings": 64,
    "factor": 4.0,
}


def find(model_type: str, **overrides: Any) -> Findings:
    config = text_causal_lm(make_tiny_config(model_type, **overrides))
    return find_layers(build_meta_model(config, dtype=torch.bfloat16))


def test_layers_come_in_the_order_of_the_forward_pass() -> None:
    layers = find("llama").layers

    assert [layer.name for layer in layers] == [f"model.layers.{i}.self_attn" for i in range(4)]


def test_a_layer_is_described_by_what_it_hands_to_attention() -> None:
    layer = find("llama", head_dim=24, num_key_value_heads=2).layers[0]

    assert (layer.num_heads, layer.num_kv_heads, layer.head_dim, layer.head_dim_v) == (4, 2, 24, 24)
    assert layer.scale == pytest.approx(24**-0.5)
    assert (layer.soft_cap, layer.sliding_window, layer.sinks, layer.shares_cache_of) == (
        None,
        None,
        False,
        None,
    )


def test_values_may_be_narrower_than_keys() -> None:
    layer = find("deepseek_v3").layers[0]

    assert (layer.head_dim, layer.head_dim_v) == (24, 12)


def test_head_dims_may_differ_between_layers() -> None:
    layers = find("gemma4_text").layers

    assert {(layer.sliding_window, layer.head_dim) for layer in layers} == {(7, 16), (None, 512)}


def test_soft_caps_scales_and_windows_of_gemma2() -> None:
    layers = find("gemma2", attn_logit_softcapping=30.0, query_pre_attn_scalar=64).layers

    assert [layer.sliding_window for layer in layers] == [7, None, 7, None]
    assert {layer.soft_cap for layer in layers} == {30.0}
    assert {layer.scale for layer in layers} == {0.125}


def test_sinks_of_gpt_oss() -> None:
    assert all(layer.sinks for layer in find("gpt_oss").layers)


def test_shared_keys_and_values_of_gemma3n() -> None:
    owners = {layer.name: layer.shares_cache_of for layer in find("gemma3n_text").layers}

    assert [owner is None for owner in owners.values()] == [True, True, False, False]
    assert set(owners.values()) - {None} <= set(owners)


@pytest.mark.parametrize("model_type", ["dbrx", "jetmoe", "longcat_flash"])
def test_layers_are_found_where_experts_ask_for_data(model_type: str) -> None:
    layers = find(model_type).layers

    assert len({layer.name for layer in layers}) == 4
    assert {layer.num_heads for layer in layers} == {4}


def test_layer_params_carry_the_cache_dtype() -> None:
    params = find("mistral").layers[1].params("bfloat16")

    assert params.layer_name == "model.layers.1.self_attn"
    assert (params.spec.num_kv_heads, params.spec.dtype, params.spec.sliding_window) == (2, "bfloat16", 7)


def test_the_model_keeps_no_trace_of_the_search() -> None:
    model = build_meta_model(make_tiny_config("llama"), dtype=torch.float32)

    find_layers(model)

    assert not any(hasattr(module, "core_engine_attention") for module in model.modules())
    assert model.config._attn_implementation == "core_engine"


@pytest.mark.parametrize(
    ("model_type", "overrides", "reason"),
    [
        ("llama4_text", {}, "some of its layers are chunked_attention"),
        ("qwen3_next", {}, "some of its layers are linear_attention"),
        ("lfm2", {}, "some of its layers are conv"),
        ("bert", {"is_decoder": False}, "its attention is bidirectional"),
        ("roberta", {}, "its positions are counted from a padding row"),
        ("bloom", {}, "its backbone takes no position_ids"),
        ("doge", {}, "its attention gets a mask that carries more than what a token sees"),
        ("diffllama", {}, "it runs the same attention layer more than once"),
        ("rembert", {}, "only 0 of its 4 layers are attention"),
        ("falcon", {}, "its attention takes no function from outside"),
        (
            "phimoe",
            {"rope_parameters": LONGROPE_BY_BATCH},
            r"mixes tokens outside attention \(in rotary_emb\)",
        ),
        ("gemma3_text", {"use_bidirectional_attention": True}, "its attention is bidirectional"),
    ],
)
def test_what_the_engine_cannot_compute_is_refused_with_the_reason(
    model_type: str, overrides: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UnsupportedModel, match=rf"is not supported: .*({reason})"):
        find(model_type, **overrides)


def test_an_encoder_decoder_is_refused() -> None:
    from transformers import CONFIG_MAPPING

    with pytest.raises(UnsupportedModel, match="not a causal language model"):
        text_causal_lm(CONFIG_MAPPING["t5"]())
