"""Finds one rank's attention layers: a model is probed whole, divided on the meta device and probed again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from core_engine.config import EngineConfig, ModelConfig
from core_engine.errors import UnsupportedFeature, UnsupportedModel
from core_engine.models.finder import Findings, FoundLayer, find_layers
from core_engine.parallel.feature_mixing import LookedAlong
from core_engine.parallel.heads import check_heads
from core_engine.parallel.lone import LoneCommunicator
from core_engine.parallel.transform import TensorParallel

__all__ = ["find_rank_layers"]


def find_rank_layers(
    model: Any, config: EngineConfig, facts: ModelConfig, *, rank: int, size: int
) -> Findings:
    """Return what `find_layers` finds, with the heads that ``rank`` computes; ``model`` is divided for it.

    These are the rank's share of each layer's heads, or all of them where the plan joins queries, keys and
    values before attention. Raises what `find_layers` and `TensorParallel` raise, `ConfigError` for heads
    that the ranks do not divide, and `UnsupportedFeature` where the divided model does not run or would
    compute something else.
    """
    with LookedAlong() as whole_looked:
        whole = find_layers(model)
    check_heads(config, facts, ((layer.num_heads, layer.num_kv_heads) for layer in whole.layers))
    TensorParallel(LoneCommunicator(rank, size)).apply(model, config, facts)
    try:
        with LookedAlong() as looked:
            layers = find_layers(model).layers
    except UnsupportedModel as error:
        raise _refusal(config, facts, str(error)) from error
    if (statistic := looked.beyond(whole_looked)) is not None:
        raise _refusal(config, facts, f"its forward takes the {statistic} of features that ranks divide")
    for layer, part in zip(whole.layers, layers, strict=True):
        _check(layer, part, size, config, facts)
    return replace(whole, layers=layers)


def _check(whole: FoundLayer, part: FoundLayer, size: int, config: EngineConfig, facts: ModelConfig) -> None:
    """Refuse a rank's layer whose queries would read other keys than the whole layer's do."""
    all_heads, heads = (whole.num_heads, whole.num_kv_heads), (part.num_heads, part.num_kv_heads)
    if heads not in (all_heads, tuple(number // size for number in all_heads)):
        raise _refusal(
            config,
            facts,
            f"each rank has {heads[0]} query heads and {heads[1]} K/V heads, of {all_heads[0]} and "
            f"{all_heads[1]}",
        )


def _refusal(config: EngineConfig, facts: ModelConfig, reason: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        f"tensor_parallel_size {config.tensor_parallel_size}: {facts.architecture} cannot be divided as "
        f"transformers' tensor-parallel plan says: {reason}; run it on one device"
    )
