"""Every named family computes what transformers computes, from a tiny checkpoint on disk."""

from __future__ import annotations

from typing import Any

import pytest

from core_engine.models._quiet import quiet_transformers
from core_engine.testing.model_check import dense_run, load_float32, random_prompts
from core_engine.testing.oracle import Oracle, compare

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.5 * i for i in range(8)],
    "original_max_position_embeddings": 64,
}
PHI3 = {"rope_parameters": LONGROPE, "max_position_embeddings": 256}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "mistral with a window": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "gemma2": ("gemma2", {}),
    "gemma3 text": ("gemma3_text", {}),
    "gemma3 multimodal": ("gemma3", {}),
    "phi3": ("phi3", {}),
    "olmo2": ("olmo2", {}),
    "smollm3": ("smollm3", {}),
    "granite": ("granite", {"logits_scaling": 4.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.5}),
    "gpt-neox": ("gpt_neox", {}),
    "gpt2": ("gpt2", {}),
    "cohere2": ("cohere2", {"logit_scale": 0.25}),
    "stablelm": ("stablelm", {}),
    "mixtral": ("mixtral", {}),
    "qwen2-moe": ("qwen2_moe", {}),
    "qwen3-moe": ("qwen3_moe", {}),
    "gpt-oss": ("gpt_oss", {}),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_greedy_tokens_equal_transformers(family: str, make_tiny: Any) -> None:
    model_type, overrides = FAMILIES[family]
    directory = make_tiny(model_type, **overrides)
    with quiet_transformers():
        oracle = Oracle(directory)

    result = compare(oracle, dense_run(load_float32(directory)), random_prompts())

    assert max(result.alone, result.batched) <= 1e-4
    assert result.tokens_equal
    # The comparison would prove nothing if logits were all alike or the top two tied.
    assert result.spread > 0.1
    assert result.margin > 5 * max(result.alone, result.batched)


@pytest.mark.parametrize(
    ("max_model_len", "prompt_length"),
    [pytest.param(64, 40, id="short factors"), pytest.param(256, 100, id="long factors")],
)
def test_phi3_longrope_compares_the_regime_of_its_max_model_len(
    make_tiny: Any, max_model_len: int, prompt_length: int
) -> None:
    directory = make_tiny("phi3", **PHI3)
    with quiet_transformers():
        oracle = Oracle(directory)
    run = dense_run(load_float32(directory, max_model_len=max_model_len))
    # transformers chooses by the length at hand; both prompts lie in the regime that is compared.
    prompts = random_prompts((prompt_length, prompt_length - 10))

    result = compare(oracle, run, prompts, num_tokens=8)

    assert result.agrees()


def test_phi3_longrope_rows_do_not_depend_on_a_long_neighbour(make_tiny: Any) -> None:
    run = dense_run(load_float32(make_tiny("phi3", **PHI3), max_model_len=64))
    short, long = random_prompts((20, 100))

    alone, beside = run([short])[0], run([short, long])[0]

    assert (alone - beside).abs().max() <= 1e-4


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("mistral with a window", {7}),
        ("gemma2", {7, None}),
        ("gpt-oss", {7, None}),
        ("llama", {None}),
    ],
)
def test_windows_are_found(family: str, expected: set[int | None], make_tiny: Any) -> None:
    model_type, overrides = FAMILIES[family]

    model = load_float32(make_tiny(model_type, **overrides))

    assert {layer.sliding_window for layer in model.layers} == expected


def test_the_text_part_of_a_multimodal_checkpoint_leaves_its_vision_tower_on_disk(make_tiny: Any) -> None:
    model = load_float32(make_tiny("gemma3"))

    assert type(model.module).__name__ == "Gemma3ForCausalLM"
    assert not any("vision" in name for name, _ in model.module.named_parameters())
