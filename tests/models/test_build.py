"""A model that its config does not allow to build is refused with the field that is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core_engine.errors import UnsupportedModel
from core_engine.models.build import build_meta_model
from core_engine.testing.tiny_models import make_tiny_config


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        ({"hidden_act": "bogus"}, "hidden_act = 'bogus'"),
        (
            {"rope_parameters": {"rope_type": "bogus", "rope_theta": 1e4}},
            "rope_parameters.rope_type = 'bogus'",
        ),
    ],
)
def test_a_value_that_transformers_does_not_know_is_named_with_its_field(
    overrides: dict[str, Any], field: str
) -> None:
    config = make_tiny_config("llama")
    for name, value in overrides.items():
        setattr(config, name, value)

    with pytest.raises(UnsupportedModel, match=f"llama cannot be built: its config says {field}"):
        build_meta_model(config, dtype=torch.float32)


def test_a_field_that_is_missing_is_named() -> None:
    config = make_tiny_config("llama")
    config.rope_parameters = {"rope_type": "linear", "rope_theta": 1e4}

    with pytest.raises(UnsupportedModel, match="its config lacks 'factor'"):
        build_meta_model(config, dtype=torch.float32)
