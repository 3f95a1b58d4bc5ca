"""Finds what one rank's attention layers are: divided on the meta device, and probed like any model."""

from __future__ import annotations

from typing import Any

from core_engine.config import EngineConfig, ModelConfig
from core_engine.errors import UnsupportedFeature, UnsupportedModel
from core_engine.models.finder import FoundLayer, find_layers
from core_engine.parallel.heads import check_heads
from core_engine.parallel.lone import LoneCommunicator
from core_engine.parallel.transform import TensorParallel

__all__ = ["find_rank_layers"]


def find_rank_layers(
    model: Any,
    layers: tuple[FoundLayer, ...],
    config: EngineConfig,
    facts: ModelConfig,
    *,
    rank: int,
    size: int,
) -> tuple[FoundLayer, ...]:
    """Divide ``model``, which lies on the meta device and has ``layers``, and return the rank's layers.

    They have the heads that the rank computes: its share, or all of them where the plan joins queries, keys
    and values before attention. Raises `ConfigError` for heads that the ranks do not divide, what
    `TensorParallel` raises, and `UnsupportedFeature` where the divided model does not run.
    """
    check_heads(config, facts, ((layer.num_heads, layer.num_kv_heads) for layer in layers))
    TensorParallel(LoneCommunicator(rank, size)).apply(model, config, facts)
    try:
        divided = find_layers(model).layers
    except UnsupportedModel as error:
        raise _refusal(config, facts, str(error)) from error
    for layer, part in zip(layers, divided, strict=True):
        whole_heads, heads = (layer.num_heads, layer.num_kv_heads), (part.num_heads, part.num_kv_heads)
        if heads not in (whole_heads, (whole_heads[0] // size, whole_heads[1] // size)):
            raise _refusal(
                config,
                facts,
                f"its plan leaves {heads[0]} query heads and {heads[1]} K/V heads on each rank, of "
                f"{whole_heads[0]} and {whole_heads[1]}",
            )
    return divided


def _refusal(config: EngineConfig, facts: ModelConfig, reason: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        f"tensor_parallel_size {config.tensor_parallel_size}: {facts.architecture} cannot be divided as "
        f"transformers' tensor-parallel plan says ({reason}); run it on one device"
    )
