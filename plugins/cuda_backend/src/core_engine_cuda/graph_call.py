"""What tells the calls of one function apart, and tensors in nested arguments and results. Pure torch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch

__all__ = ["call_key", "map_tensors", "tensors_of"]


def call_key(value: Any) -> Hashable:
    """Return a key that is equal for calls which a captured graph can stand in for.

    Of tensors it holds shape, data type and place in memory, because a graph reads the memory that it was
    captured with; of anything else the value. Mappings and tuples are entered.
    """
    if isinstance(value, torch.Tensor):
        return value.data_ptr(), value.dtype, value.shape, value.stride()
    if isinstance(value, tuple):
        return tuple(map(call_key, value))
    if isinstance(value, Mapping):
        return tuple((name, call_key(item)) for name, item in value.items())
    return type(value), value


def tensors_of(value: Any) -> list[torch.Tensor]:
    """List the tensors in ``value``, in order."""
    tensors: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        tensors.append(tensor)
        return tensor

    map_tensors(value, note)
    return tensors


def map_tensors(value: Any, fn: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return ``value`` with each of its tensors replaced; what has none is returned as it is."""
    if isinstance(value, torch.Tensor):
        return fn(value)
    if isinstance(value, tuple):
        return tuple(map_tensors(item, fn) for item in value)
    if isinstance(value, Mapping):
        return {name: map_tensors(item, fn) for name, item in value.items()}
    return value
