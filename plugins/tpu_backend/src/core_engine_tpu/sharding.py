"""How a model's weights are divided over devices, from transformers' tensor-parallel plan of the model.

XLA's partitioner computes the same numbers however weights are divided: a plan that says too little
costs memory and time, never correctness. Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core_engine.plugin.runtime import TensorParallelPlan

__all__ = ["divide_weights", "divided_share"]


def divide_weights(
    plan: TensorParallelPlan, shapes: Mapping[str, tuple[int, ...]], num_devices: int
) -> dict[str, int]:
    """Return for each parameter that is divided the dimension along which it is; the others stay whole.

    ``shapes`` are those of all parameters by name. A parameter whose dimension ``num_devices`` does not
    divide stays whole, as does one of a style that is not known.
    """
    divided = {}
    for name, shape in shapes.items():
        division = plan.division(name, len(shape))
        if division is not None and shape[division.dim] % num_devices == 0:
            divided[name] = division.dim
    return divided


def divided_share(shapes: Mapping[str, tuple[int, ...]], divided: Mapping[str, int]) -> float:
    """Return which share of all elements is divided, from 0 to 1."""
    total = sum(map(prod, shapes.values()))
    return sum(prod(shapes[name]) for name in divided) / max(1, total)
