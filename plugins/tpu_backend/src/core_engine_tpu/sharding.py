"""How a model's weights are divided over devices, from transformers' tensor-parallel plan of the model.

XLA's partitioner computes the same numbers however weights are divided: a plan that says too little
costs memory and time, never correctness. Torch-free.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod

__all__ = ["divide_weights", "divided_share"]

#: Styles whose matrices are divided by output features (the last dimension but one; a bias by its only one).
_BY_OUTPUT = frozenset({"colwise", "colwise_gather_output", "colwise_rep", "packed_colwise"})
#: Styles whose matrices are divided by input features (the last dimension); a bias stays whole.
_BY_INPUT = frozenset({"rowwise", "rowwise_split_input", "rowwise_rep", "packed_rowwise"})
#: Embeddings by vocabulary (dimension 0) or by features.
_EMBEDDINGS = {"embedding_rowwise": 0, "embedding_colwise": 1}


def divide_weights(
    plan: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]], num_devices: int
) -> dict[str, int]:
    """Return for each parameter that is divided the dimension along which it is; the others stay whole.

    ``plan`` maps names of modules or parameters, with ``*`` for the numbers in them, to styles of
    transformers. ``shapes`` are those of all parameters by name. A parameter whose dimension
    ``num_devices`` does not divide stays whole, as does one of a style that is not known here.
    """
    divided = {}
    for name, shape in shapes.items():
        dim = _dimension(_style(plan, name), len(shape))
        if dim is not None and shape[dim] % num_devices == 0:
            divided[name] = dim
    return divided


def divided_share(shapes: Mapping[str, tuple[int, ...]], divided: Mapping[str, int]) -> float:
    """Return which share of all elements is divided, from 0 to 1."""
    total = sum(map(prod, shapes.values()))
    return sum(prod(shapes[name]) for name in divided) / max(1, total)


def _style(plan: Mapping[str, str], name: str) -> str | None:
    """Return the style of a parameter: its own, else that of the module that holds it."""
    generic = re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)
    return plan.get(generic, plan.get(generic.rpartition(".")[0]))


def _dimension(style: str | None, num_dims: int) -> int | None:
    if style in _EMBEDDINGS:
        return _EMBEDDINGS[style] if num_dims == 2 else None
    if style in _BY_OUTPUT:
        return max(0, num_dims - 2)
    if style in _BY_INPUT and num_dims >= 2:
        return num_dims - 1
    return None
