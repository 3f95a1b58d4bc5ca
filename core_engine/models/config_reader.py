"""Reads a model's facts from its files, before any weight."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from core_engine._text import error_line
from core_engine.config import DTYPE_BYTES, EngineConfig, ModelConfig
from core_engine.errors import ModelLoadError, UnsupportedModel
from core_engine.models.causal_lm import read_transformers_config, text_causal_lm
from core_engine.models.json_file import read_json
from core_engine.models.locate import WEIGHT_PATTERNS, ModelFiles, locate_model
from core_engine.models.shards import check_shards

__all__ = ["read_model_config"]


def read_model_config(config: EngineConfig, *, weights: bool = True) -> ModelConfig:
    """Read the facts of ``config.model``: a directory, a ``.gguf`` file or a hub id.

    A multimodal checkpoint is described by its text part. With ``weights=False`` nothing is asked of its
    weights, which may be missing. Raises `ModelNotFound`, `ModelLoadError` (a
    damaged config, weights in pickle files, code of its own that was not allowed) or `UnsupportedModel`.
    """
    files = locate_model(config.model, config.revision)
    full = read_transformers_config(
        files.directory, files.gguf_file, trust_remote_code=config.trust_remote_code
    )
    text = text_causal_lm(full)
    _refuse_quantized(full)
    weight_files = _weight_files(files, config) if weights else []
    sizes = text.get_text_config()
    return ModelConfig(
        path=config.model,
        directory=str(files.directory),
        gguf_file=files.gguf_file,
        model_type=text.model_type,
        architecture=_architecture(text),
        dtype=_dtype(text, full),
        vocab_size=_number(sizes, "vocab_size", files),
        hidden_size=_number(sizes, "hidden_size", files),
        num_layers=_number(sizes, "num_hidden_layers", files),
        num_attention_heads=_attention_heads(sizes),
        num_kv_heads=_number_of_all_layers(sizes, "num_key_value_heads"),
        max_position_embeddings=_optional_number(sizes, "max_position_embeddings"),
        eos_token_ids=_eos_token_ids(full, text, files.directory),
        weight_file_bytes=sum(_size(file) for file in weight_files),
    )


def _weight_files(files: ModelFiles, config: EngineConfig) -> list[Path]:
    """Return the weight files that lie here; those of a hub repository may not have been fetched yet."""
    if files.gguf_file is not None:
        return [files.directory / files.gguf_file]
    found = sorted(files.directory.glob(WEIGHT_PATTERNS["safetensors"]))
    if files.hub_id is not None:
        return found
    if found:
        check_shards(files.directory, "safetensors")
        return found
    pickled = sorted(files.directory.glob(WEIGHT_PATTERNS["pickle"]))
    if not pickled:
        for kind in WEIGHT_PATTERNS:
            check_shards(files.directory, kind)
        raise ModelLoadError(f"{str(files.directory)!r} holds no weights (*.safetensors or one .gguf file)")
    if not config.allow_pickled_weights:
        raise ModelLoadError(
            f"the weights in {str(files.directory)!r} are pickle files ({pickled[0].name}), which can run "
            "code when they are read: convert them to safetensors, or set --allow-pickled-weights "
            "(allow_pickled_weights=True) if you trust them"
        )
    check_shards(files.directory, "pickle")
    return pickled


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:  # a link to nothing, or to itself
        raise ModelLoadError(f"cannot read the weight file {str(file)!r}: {error_line(error)}") from error


def _refuse_quantized(full: Any) -> None:
    quantization = getattr(full, "quantization_config", None)
    if quantization is None:
        return
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization.quant_method
    raise UnsupportedModel(
        f"the weights are quantized ({getattr(method, 'value', method)}), which core-engine does not load "
        "yet; use the model's bfloat16 or float16 checkpoint, or a GGUF file"
    )


def _architecture(text: Any) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    named = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(text.model_type)
    if isinstance(named, str):
        return named
    stated = list(getattr(text, "architectures", None) or named or [])
    return str(stated[0]) if stated else text.model_type


def _dtype(text: Any, full: Any) -> str:
    for config in (text, full):
        name = str(getattr(config, "dtype", None)).removeprefix("torch.")
        if name in DTYPE_BYTES:
            return name
    return "float32"


def _number(config: Any, name: str, files: ModelFiles) -> int:
    value = _optional_number(config, name)
    if value is None:
        where = files.gguf_file or "config.json"
        raise ModelLoadError(f"{where} of {str(files.directory)!r} says no {name}, or not as a number")
    return value


def _attention_heads(text: Any) -> int:
    value = _number_of_all_layers(text, "num_attention_heads")
    if value is None:
        raise UnsupportedModel(
            f"{_architecture(text)} is not supported: its config names no number of attention heads that "
            "holds for all layers"
        )
    return value


def _number_of_all_layers(config: Any, name: str) -> int | None:
    try:
        return _optional_number(config, name)
    except RuntimeError:  # transformers refuses to name one number for layers that differ
        return None


def _optional_number(config: Any, name: str) -> int | None:
    value = getattr(config, name, None)
    return value if isinstance(value, int) and value > 0 else None


def _eos_token_ids(full: Any, text: Any, directory: Path) -> tuple[int, ...]:
    """Union of what the config, its text part and generation_config.json name."""
    sources = [getattr(full, "eos_token_id", None), getattr(text, "eos_token_id", None)]
    generation = directory / "generation_config.json"
    if generation.is_file():
        content = read_json(generation)
        sources.append(content.get("eos_token_id") if isinstance(content, dict) else None)
    return tuple(sorted({token for source in sources for token in _ids(source)}))


def _ids(source: object) -> Iterator[int]:
    values = source if isinstance(source, list | tuple) else [source]
    yield from (value for value in values if isinstance(value, int) and not isinstance(value, bool))
