"""The LoRA example on the real model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from real_model.threads import all_cores

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "lora"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.real_model
def test_an_adapter_trained_here_acts_beside_requests_without_it(smollm2: Path, tmp_path: Path) -> None:
    training, serving = load("train_adapter"), load("mixed_batch")
    with all_cores():
        loss = training.train(str(smollm2), tmp_path / "adapter")
        rows = serving.answer(str(smollm2), str(tmp_path / "adapter"), backend="cpu")
    assert loss < 0.5
    for _, plain, adapted in rows:
        assert adapted.startswith(training.GREETING)
        assert not plain.startswith("Ahoy")
    assert "Paris" in rows[0][1]
    assert "Paris" in rows[0][2]
