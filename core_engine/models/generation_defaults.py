"""Sampling defaults that a model's authors put into its generation_config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from core_engine._text import error_line
from core_engine.config import ModelConfig
from core_engine.errors import InvalidRequest, ModelLoadError
from core_engine.sampling.params import SamplingParams

__all__ = ["read_generation_defaults"]

_NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def read_generation_defaults(model: ModelConfig) -> dict[str, Any]:
    """Return the fields of `SamplingParams` that the file sets otherwise than sampling freely would.

    Whether to sample at all (``do_sample``) is the request's own choice and is not taken over. A model
    without the file has no defaults. Raises `ModelLoadError` naming the file when it is no JSON object,
    and naming the field as well when a value is out of range.
    """
    path = Path(model.directory) / "generation_config.json"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot read {path}: {error_line(error)}. Mend it or delete it") from error
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} is not valid JSON: {error}. Mend it or delete it") from None
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path} must hold a JSON object. Mend it or delete it")
    defaults = {name: content[name] for name in _NAMES if content.get(name) is not None}
    try:
        SamplingParams(**defaults)
    except InvalidRequest as error:
        raise ModelLoadError(
            f"{path}: {error}. Mend it, or set --no-use-generation-config (use_generation_config=False)"
        ) from error
    return defaults
