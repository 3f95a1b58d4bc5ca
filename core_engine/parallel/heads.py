"""Over how many devices a model's attention heads can be divided; light, asked before anything is opened."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

from core_engine.config import EngineConfig, ModelConfig
from core_engine.errors import ConfigError

__all__ = ["check_heads", "possible_sizes"]


def possible_sizes(num_heads: Iterable[int]) -> tuple[int, ...]:
    """Return the numbers of devices that divide every one of ``num_heads`` evenly."""
    common = gcd(*num_heads)
    return tuple(size for size in range(1, common + 1) if common % size == 0)


def check_heads(config: EngineConfig, model: ModelConfig, heads: Iterable[tuple[int, int]]) -> None:
    """Raise `ConfigError` where ``tensor_parallel_size`` does not divide heads, naming the sizes that do.

    ``heads`` are numbers of query heads and of K/V heads, of each layer or of the model. A rank holds whole
    heads of keys and values and the queries that read them.
    """
    size = config.tensor_parallel_size
    pairs = sorted(set(heads))
    uneven = next((pair for pair in pairs if any(number % size for number in pair)), None)
    if uneven is None:
        return
    possible = possible_sizes(number for pair in pairs for number in pair)
    raise ConfigError(
        f"tensor_parallel_size {size} does not divide the {uneven[0]} query heads and {uneven[1]} K/V heads "
        f"of {model.architecture} evenly; these sizes do: {', '.join(map(str, possible))}"
    )
