"""Divided models against transformers' own forward of the whole ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core_engine.testing.model_check import random_prompts
from core_engine.testing.oracle import Oracle, compare
from core_engine.testing.rank_models import communicators, divided_run, load_ranks
from core_engine.testing.tiny_models import make_tiny_config, save_tiny_model

#: Query and K/V heads that each of two ranks computes, of 4 and 2 (4 where there are as many).
SHARE, ALL = (2, 1), (4, 2)


@pytest.mark.parametrize(
    ("model_type", "heads"),
    [
        ("llama", SHARE),
        ("qwen2", SHARE),  # biases
        ("qwen3", SHARE),  # norms over each head
        ("gemma2", SHARE),  # tied, a scaled embedding, windows, soft caps
        ("mixtral", SHARE),  # experts
        ("aria_text", SHARE),  # experts that lie transposed, and shared ones
        ("granite_swa", SHARE),  # sinks
        ("deepseek_v2", (2, 2)),  # latent attention: as many K/V heads as query heads
        ("gpt_neox", (2, 2)),  # queries, keys and values in one matrix, head by head
        ("olmo2", ALL),  # norms over all heads
        ("phi3", ALL),  # merged matrices that the plan joins again
        ("gpt_oss", ALL),  # a plan for the vocabulary only
    ],
)
def test_two_ranks_compute_what_one_computes(model_type: str, heads: tuple[int, int], tmp_path: Path) -> None:
    save_tiny_model(make_tiny_config(model_type), tmp_path)
    with communicators(2, tmp_path) as ranks:
        models = load_ranks(tmp_path, ranks, "float32")
        result = compare(Oracle(tmp_path), divided_run(models), random_prompts(), num_tokens=8)
    assert result.agrees(), result
    assert {(layer.num_heads, layer.num_kv_heads) for model in models for layer in model.layers} == {heads}


def test_a_vocabulary_that_does_not_divide_is_rounded_up(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3}
    save_tiny_model(make_tiny_config("llama", **sizes), tmp_path)
    with communicators(3, tmp_path) as ranks:
        models = load_ranks(tmp_path, ranks, "float32")
        result = compare(Oracle(tmp_path), divided_run(models), random_prompts(), num_tokens=8)
    assert result.agrees(), result
    assert [model.module.lm_head.weight.shape[0] for model in models] == [67] * 3  # of 199
