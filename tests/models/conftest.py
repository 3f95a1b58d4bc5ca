"""Tiny checkpoints for the tests of the loading pipeline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core_engine.models._quiet import quiet_transformers
from core_engine.testing.tiny_models import make_tiny_config, save_tiny_model

MakeTiny = Callable[..., Path]


@pytest.fixture
def make_tiny(tmp_path: Path) -> MakeTiny:
    """Return a function that saves a tiny random checkpoint of a type and returns its directory."""

    def make(model_type: str, seed: int = 0, name: str | None = None, **overrides: Any) -> Path:
        directory = tmp_path / (name or model_type)
        with quiet_transformers():
            return save_tiny_model(make_tiny_config(model_type, **overrides), directory, seed)

    return make
