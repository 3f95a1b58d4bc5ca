"""Checks one model type: a tiny random model, loaded by the engine, against transformers' own forward."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import torch

from core_engine.config import EngineConfig
from core_engine.errors import ModelError, UnsupportedModel
from core_engine.models._quiet import quiet_transformers
from core_engine.models.build import build_meta_model
from core_engine.models.causal_lm import text_causal_lm
from core_engine.models.config_reader import read_model_config
from core_engine.models.finder import find_layers
from core_engine.models.loader import LoadedModel, load_model
from core_engine.testing.dense_attention import attach_dense_attention
from core_engine.testing.oracle import Comparison, EngineRun, Oracle, compare
from core_engine.testing.tiny_models import VOCAB_SIZE, make_default_config, make_tiny_config, save_tiny_model

__all__ = [
    "TypeResult",
    "TypeState",
    "check_type",
    "dense_run",
    "load_float32",
    "needs_decoder",
    "random_prompts",
]

#: Logits of a tiny random model that differ less than this from each other prove nothing.
_LEAST_SPREAD = 0.05


class TypeState(StrEnum):
    """What came of a model type."""

    #: Logits and greedy tokens agree with transformers.
    WORKS = "works"
    #: Refused before weights.
    REFUSED = "refused"
    #: No tiny model could be made or run by transformers itself, so nothing is known.
    UNTESTED = "untested"
    #: Computed, and not what transformers computes.
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class TypeResult:
    """The state of one model type and why."""

    model_type: str
    state: TypeState
    detail: str


def check_type(model_type: str, directory: Path, num_tokens: int = 32, **overrides: Any) -> TypeResult:
    """Make a tiny model of ``model_type`` in ``directory``, load it and compare it."""
    with quiet_transformers():
        try:
            save_tiny_model(make_tiny_config(model_type, **overrides), directory)
            oracle = Oracle(directory)
            oracle.logits([3, 4, 5])
        except Exception as error:  # transformers' own trouble with a tiny config of this type
            if (part := _text_part(model_type)) is not None and isinstance(error, ImportError):
                return replace(check_type(part, directory, num_tokens, **overrides), model_type=model_type)
            reason = _refused_by_config(model_type, overrides)
            if reason is not None:
                return TypeResult(model_type, TypeState.REFUSED, reason)
            return TypeResult(model_type, TypeState.UNTESTED, _line(error))
        try:
            model = load_float32(directory)
        except UnsupportedModel as error:
            return TypeResult(
                model_type, TypeState.REFUSED, str(error).partition("not supported: ")[2] or str(error)
            )
        except ModelError as error:
            return TypeResult(model_type, TypeState.WRONG, _line(error))
        try:
            result = compare(oracle, dense_run(model), random_prompts(), num_tokens)
        except Exception as error:
            return TypeResult(model_type, TypeState.WRONG, _line(error))
    good = result.agrees() and result.spread > _LEAST_SPREAD
    detail = _describe(model, result) + (", with is_decoder=true only" if needs_decoder(model_type) else "")
    return TypeResult(model_type, TypeState.WORKS if good else TypeState.WRONG, detail)


def needs_decoder(model_type: str) -> bool:
    """Say whether a type that works is refused unless its config says ``is_decoder: true``."""
    with quiet_transformers():
        config = text_causal_lm(make_tiny_config(model_type))
        if getattr(config, "is_decoder", None) is not True:
            return False
        config.is_decoder = False
        try:
            find_layers(build_meta_model(config, dtype=torch.float32))
        except UnsupportedModel:
            return True
    return False


def load_float32(directory: Path, **settings: Any) -> LoadedModel:
    """Load the checkpoint in ``directory`` in float32 through the engine's pipeline."""
    config = EngineConfig(model=str(directory), **settings)
    return load_model(config, read_model_config(config), dtype="float32", progress=False)


def dense_run(model: LoadedModel) -> EngineRun:
    """Return a function that computes whole prompts, packed, with dense attention."""
    packed = attach_dense_attention(model)

    @torch.no_grad()
    def run(prompts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        packed.lengths = [len(prompt) for prompt in prompts]
        token_ids = torch.tensor([token for prompt in prompts for token in prompt], dtype=torch.int32)
        positions = torch.cat([torch.arange(len(prompt), dtype=torch.int32) for prompt in prompts])
        logits = model.logits(model.backbone(token_ids, positions))
        return list(torch.split(logits, list(packed.lengths)))

    return run


def random_prompts(lengths: Sequence[int] = (21, 40, 3), seed: int = 0) -> list[list[int]]:
    """Return prompts of random ids that are no special tokens of the tiny models."""
    rng = random.Random(seed)
    return [[rng.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in lengths]


def _text_part(model_type: str) -> str | None:
    """Return the type of the text part that the engine loads of a multimodal type."""
    try:
        config = make_default_config(model_type)
        part = text_causal_lm(config)
    except (UnsupportedModel, ValueError):
        return None
    return None if part is config else str(part.model_type)


def _refused_by_config(model_type: str, overrides: dict[str, Any]) -> str | None:
    """Return the refusal of a type whose tiny model transformers cannot make or run, or None."""
    default = partial(make_default_config, model_type)
    for make in (partial(make_tiny_config, model_type, **overrides), default):
        try:
            config = text_causal_lm(make())
            find_layers(build_meta_model(config, dtype=torch.float32))
        except UnsupportedModel as error:
            reason = str(error).partition("not supported: ")[2]
            # A tiny config may break the model, which says nothing of the type.
            if reason and (make is default or "does not run without data" not in reason):
                return reason
        except Exception:
            continue
    return None


def _describe(model: LoadedModel, result: Comparison) -> str:
    worst = max(result.alone, result.batched)
    windows = {layer.sliding_window for layer in model.layers}
    kinds = [
        *(["sliding window"] if windows - {None} else []),
        *(["soft cap"] if any(layer.soft_cap for layer in model.layers) else []),
        *(["sinks"] if any(layer.sinks for layer in model.layers) else []),
        *(["shared KV"] if any(layer.shares_cache_of for layer in model.layers) else []),
    ]
    text = ", ".join(["full attention" if None in windows else "", *kinds]).strip(", ")
    if result.agrees() and result.spread > _LEAST_SPREAD:
        return text
    return f"{text}; difference {worst:.1e}, spread {result.spread:.1e}, tokens equal: {result.tokens_equal}"


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:160]}"
