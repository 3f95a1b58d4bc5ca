"""Rotary embeddings that follow the batch are pinned down or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core_engine.errors import UnsupportedModel
from core_engine.testing.model_check import load_float32

from .test_families import PHI3


def test_dynamic_rotary_is_refused(make_tiny: Any) -> None:
    directory = make_tiny("llama", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})

    with pytest.raises(UnsupportedModel, match=r"'dynamic'.*longest sequence in a batch"):
        load_float32(directory)


@pytest.mark.parametrize(("max_model_len", "factor"), [(64, "short_factor"), (65, "long_factor")])
def test_longrope_is_chosen_by_max_model_len(make_tiny: Any, max_model_len: int, factor: str) -> None:
    model = load_float32(make_tiny("phi3", **PHI3), max_model_len=max_model_len)
    rotary: Any = model.module.get_submodule("model.rotary_emb")

    rope = PHI3["rope_parameters"]
    plain = rope["rope_theta"] ** (torch.arange(0, 16, 2) / 16)
    expected = 1.0 / (torch.tensor(rope[factor]) * plain)
    torch.testing.assert_close(rotary.inv_freq, expected)
    rotary(torch.zeros(1, 1, 16), torch.tensor([[10_000]]))
    torch.testing.assert_close(rotary.inv_freq, expected)
