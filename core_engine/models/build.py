"""Builds a model of transformers without weights: on the meta device, with the engine's attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from core_engine._text import error_line
from core_engine.errors import UnsupportedModel
from core_engine.models._quiet import quiet_transformers
from core_engine.models.attention_hook import ATTENTION_NAME, register_attention

__all__ = ["build_meta_model"]

#: The way of computing the experts of mixture models whose shapes do not depend on the tokens' routes.
_STATIC_EXPERTS = "batched_mm"


def build_meta_model(text_config: Any, *, dtype: torch.dtype, trust_remote_code: bool = False) -> Any:
    """Return the causal-LM model of ``text_config`` with all parameters on the meta device.

    Raises `UnsupportedModel` when it cannot be built from its config.
    """
    register_attention()
    with quiet_transformers():
        from transformers import AutoModelForCausalLM

        try:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(
                    text_config,
                    dtype=dtype,
                    attn_implementation=ATTENTION_NAME,
                    experts_implementation=_STATIC_EXPERTS,
                    trust_remote_code=trust_remote_code,
                )
        except KeyError as error:
            if error.args != (ATTENTION_NAME,):
                raise UnsupportedModel(_about_key(text_config, error)) from error
            raise UnsupportedModel(
                f"{text_config.model_type} is not supported: its attention takes no function from outside"
            ) from error
        except Exception as error:  # a class may raise anything for a config it does not expect
            raise UnsupportedModel(
                f"{text_config.model_type} cannot be built from its config "
                f"({type(error).__name__}: {error_line(error)})"
            ) from error
    return model.eval()


def _about_key(text_config: Any, error: KeyError) -> str:
    """Say what a look-up that failed means: a value that transformers does not know, or a missing field."""
    name = error_line(error)
    fields = [field for field, value in _texts(text_config.to_dict()) if value == name]
    if fields:
        return (
            f"{text_config.model_type} cannot be built: its config says {' and '.join(fields)} = {name!r}, "
            "which the installed transformers does not know; mend it, or upgrade transformers"
        )
    return f"{text_config.model_type} cannot be built: its config lacks {name!r}"


def _texts(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted name and the value of every text in a config."""
    for name, value in values.items():
        if isinstance(value, str):
            yield f"{prefix}{name}", value
        elif isinstance(value, dict):
            yield from _texts(value, f"{prefix}{name}.")
