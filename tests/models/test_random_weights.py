"""A model can be loaded without its weights, with random ones in their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from core_engine.config import EngineConfig
from core_engine.errors import ModelLoadError
from core_engine.models.config_reader import read_model_config
from core_engine.models.loader import LoadedModel, load_model


def load(directory: Path, load_format: str) -> LoadedModel:
    config = EngineConfig(model=str(directory), load_format=load_format)
    facts = read_model_config(config, weights=load_format == "auto")
    return load_model(config, facts, dtype="bfloat16", progress=False)


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "qwen3_moe"])
def test_shapes_and_buffers_are_the_models_own(make_tiny: Any, model_type: str) -> None:
    directory = make_tiny(model_type)
    real = load(directory, "auto")
    (directory / "model.safetensors").unlink()

    drawn = load(directory, "dummy")

    assert drawn.weight_bytes == real.weight_bytes
    assert [layer.name for layer in drawn.layers] == [layer.name for layer in real.layers]
    ours, theirs = dict(drawn.module.named_parameters()), dict(real.module.named_parameters())
    assert {name: p.shape for name, p in ours.items()} == {name: p.shape for name, p in theirs.items()}
    assert all(parameter.isfinite().all() and not parameter.is_meta for parameter in ours.values())
    for name, buffer in real.module.named_buffers():
        torch.testing.assert_close(drawn.module.get_buffer(name), buffer, rtol=0, atol=0)


def test_two_loads_draw_the_same(make_tiny: Any) -> None:
    directory = make_tiny("llama")
    one, other = (load(directory, "dummy").module.state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_cpu_needs_no_accelerate(make_tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.integrations.accelerate.is_accelerate_available", lambda: False)
    assert load(make_tiny("llama"), "dummy").weight_bytes > 0


def test_without_it_a_folder_must_hold_weights(make_tiny: Any) -> None:
    directory = make_tiny("llama")
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="holds no weights"):
        load(directory, "auto")
