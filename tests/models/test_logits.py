"""Logits pass through the model's own code, so its scales and caps apply."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core_engine.testing.model_check import load_float32


@pytest.mark.parametrize(
    ("model_type", "overrides"),
    [
        ("gemma2", {"final_logit_softcapping": 2.0}),
        ("granite", {"logits_scaling": 5.0}),
        ("cohere2", {"logit_scale": 0.5}),
    ],
)
def test_logits_differ_from_the_bare_head(model_type: str, overrides: dict[str, Any], make_tiny: Any) -> None:
    model = load_float32(make_tiny(model_type, **overrides))
    rows = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))

    logits = model.logits(rows)

    bare = rows @ model.module.get_submodule("lm_head").weight.T
    assert logits.shape == (3, 199)
    assert (logits - bare).abs().max() > 0.1


def test_the_model_keeps_its_backbone(make_tiny: Any) -> None:
    model = load_float32(make_tiny("llama"))

    model.logits(torch.zeros(2, 64))

    assert type(model.module.get_submodule("model")).__name__ == "LlamaModel"


def test_weights_replaced_after_loading_are_seen(make_tiny: Any) -> None:
    model = load_float32(make_tiny("llama"))
    with torch.no_grad():
        model.module.get_submodule("lm_head").weight.zero_()

    assert model.logits(torch.ones(2, 64)).abs().max() == 0
