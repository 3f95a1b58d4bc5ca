"""Which linear layers can take an adapter is seen in a forward pass, not read from a model's name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core_engine.models.build import build_meta_model
from core_engine.models.causal_lm import text_causal_lm
from core_engine.models.finder import find_layers
from core_engine.models.token_linears import watch_linears
from core_engine.testing.tiny_models import make_tiny_config


def found(model_type: str) -> set[str]:
    model = build_meta_model(text_causal_lm(make_tiny_config(model_type)), dtype=torch.float32)
    return set(find_layers(model).token_linears)


@pytest.mark.parametrize(
    ("model_type", "names"),
    [
        ("llama", "self_attn.q_proj k_proj v_proj o_proj mlp.gate_proj up_proj down_proj"),
        ("gpt2", "attn.c_attn c_proj mlp.c_fc c_proj"),
        ("phi3", "self_attn.qkv_proj o_proj mlp.gate_up_proj down_proj"),
    ],
)
def test_every_linear_layer_of_the_backbone_and_not_the_head(model_type: str, names: str) -> None:
    linears = found(model_type)
    assert len(linears) == 4 * len(names.split())
    assert {name.rpartition(".")[2] for name in linears} == {n.rpartition(".")[2] for n in names.split()}


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe", "granitemoe"])
def test_no_expert_of_a_mixture(model_type: str) -> None:
    linears = found(model_type)
    assert any(name.endswith("q_proj") for name in linears)
    assert not any("experts" in name for name in linears)


class Odd(torch.nn.Module):
    """Layers that are used in ways which leave no place for an adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.good, self.twice, self.weight_only, self.chosen_rows, self.unused = (
            torch.nn.Linear(4, 4) for _ in range(5)
        )
        self.custom = Special(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.custom(self.twice(self.twice(self.good(x))))
        x = x @ self.weight_only.weight
        return self.chosen_rows(self.chosen_rows(x)[:, :3])


class Special(torch.nn.Linear):
    """Not a plain linear layer: it may compute anything."""


def test_only_layers_that_are_called_once_with_all_tokens() -> None:
    model = Odd()
    with watch_linears(model, num_tokens=7) as watch:
        model(torch.zeros(1, 7, 4))
    assert watch.token_linears == ("good",)
