"""Where the real model lies: `make model` brings it, a variable names a copy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["smollm2_folder", "smollm2_gguf_file"]

_MODELS = Path(__file__).resolve().parents[1] / ".cache" / "models"


def smollm2_folder() -> Path:
    """Return the folder of SmolLM2-135M-Instruct in bfloat16 safetensors; without it the test fails."""
    return _existing("CORE_ENGINE_TEST_MODEL", _MODELS / "SmolLM2-135M-Instruct")


def smollm2_gguf_file() -> Path:
    """Return the same model as one 4-bit GGUF file; without it the test fails."""
    folder = _MODELS / "SmolLM2-135M-Instruct-GGUF"
    return _existing("CORE_ENGINE_TEST_GGUF", folder / "SmolLM2-135M-Instruct.Q4_1.gguf")


def _existing(variable: str, default: Path) -> Path:
    path = Path(os.environ.get(variable) or default)
    if not path.exists():
        # Not a skip: a run without the real model must not look like a pass.
        pytest.fail(f"{path} is missing: run `make model`, or point {variable} at a copy", pytrace=False)
    return path
