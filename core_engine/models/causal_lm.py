"""Reads a checkpoint's config through transformers and picks the class that computes logits."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from core_engine._text import error_line
from core_engine.errors import ModelLoadError, UnsupportedModel
from core_engine.models._quiet import quiet_transformers
from core_engine.models.json_file import read_json

__all__ = ["is_text_part", "read_transformers_config", "require_gguf", "text_causal_lm"]


def read_transformers_config(
    directory: Path, gguf_file: str | None = None, *, trust_remote_code: bool = False
) -> Any:
    """Return the ``PreTrainedConfig`` of a checkpoint on this machine.

    Raises `ModelLoadError` when the file is missing, damaged or incomplete and when it brings Python
    code that ``trust_remote_code`` does not allow; `UnsupportedModel` when transformers does not know
    the type.
    """
    if gguf_file is not None:
        require_gguf()
        keywords: dict[str, Any] = {"gguf_file": gguf_file}
        name = str(directory / gguf_file)
    else:
        keywords = {}
        name = str(directory / "config.json")
        _check_config_file(directory / "config.json", trust_remote_code)
    with quiet_transformers():
        from transformers import AutoConfig

        try:
            return AutoConfig.from_pretrained(
                directory, trust_remote_code=trust_remote_code, local_files_only=True, **keywords
            )
        except Exception as error:  # transformers raises OSError, ValueError, KeyError … for bad values
            raise ModelLoadError(f"cannot read {name!r}: {error_line(error)}") from error


def require_gguf() -> None:
    """Raise `ModelLoadError` with the line to type when the packages for GGUF are missing."""
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelLoadError(
            f"GGUF files need {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            'installed: pip install "core-engine[gguf]"'
        )


def text_causal_lm(config: Any) -> Any:
    """Return the config whose causal-LM class serves text: ``config`` itself or its text part.

    Raises `UnsupportedModel` when transformers maps neither to a causal language model.
    """
    from transformers import AutoModelForCausalLM

    mapping = AutoModelForCausalLM._model_mapping
    try:
        text = config.get_text_config()
    except ValueError as error:
        raise UnsupportedModel(
            f"{config.model_type} is not supported: its config names several text models"
        ) from error
    if is_text_part(text, config) and type(text) in mapping:
        # Whether the head shares the embeddings is said by the whole.
        text.tie_word_embeddings = config.tie_word_embeddings
        return text
    remote = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if type(config) in mapping or remote:
        return config
    raise UnsupportedModel(
        f"model type {config.model_type!r} is not a causal language model that the installed transformers "
        "maps; core-engine serves text generation models"
    )


def is_text_part(text: Any, config: Any) -> bool:
    """Say whether ``text`` is one part of the multimodal ``config``."""
    return text is not config


def _check_config_file(path: Path, trust_remote_code: bool) -> None:
    if not path.exists():
        raise ModelLoadError(f"{str(path.parent)!r} holds no config.json, so it is no model directory")
    content = read_json(path)
    if not isinstance(content, dict):
        raise ModelLoadError(f"{str(path)!r} does not hold a JSON object")
    model_type = content.get("model_type")
    if not isinstance(model_type, str):
        raise ModelLoadError(f"{str(path)!r} names no model_type")
    from transformers import CONFIG_MAPPING

    if model_type in CONFIG_MAPPING:
        return
    if not content.get("auto_map"):
        raise UnsupportedModel(
            f"model type {model_type!r} is not known to the installed transformers; upgrade transformers if "
            "the model is newer than it"
        )
    if not trust_remote_code:
        raise ModelLoadError(
            f"model type {model_type!r} comes with Python code of its own, which is not run unless asked: "
            "set --trust-remote-code (trust_remote_code=True) if you trust its authors"
        )
