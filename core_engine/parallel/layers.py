"""Layers that hold one rank's share of a weight, and exchange what the others need."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as functional

from core_engine.parallel.communicator import Communicator
from core_engine.parallel.share import Share, mark_share

__all__ = [
    "GatheredLinear",
    "RowLinear",
    "column_linear",
    "divide_embedding",
    "divide_parameter",
    "sum_output",
]


def column_linear(base: torch.nn.Linear, share: Share, bias_share: Share | None) -> torch.nn.Linear:
    """Return a linear layer, on the meta device, of the rank's output features; nothing is exchanged."""
    linear = torch.nn.Linear(base.in_features, share.length, base.bias is not None, **_like(base))
    _mark(linear, share, bias_share)
    return linear


class GatheredLinear(torch.nn.Linear):
    """Holds the rank's output features and joins all ranks': every rank returns all of them."""

    def __init__(
        self, base: torch.nn.Linear, share: Share, bias_share: Share | None, communicator: Communicator
    ) -> None:
        super().__init__(base.in_features, share.length, base.bias is not None, **_like(base))
        _mark(self, share, bias_share)
        self._communicator = communicator
        self._num_gathered = base.out_features

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Compute ``x W + b``: ``[..., in_features]`` → ``[..., out_features of the whole layer]``."""
        output = functional.linear(input, self.weight, self.bias)
        # Shares are of one length, so the last may end in features that are none.
        return self._communicator.all_gather(output)[..., : self._num_gathered]


class RowLinear(torch.nn.Linear):
    """Holds the rank's input features and returns the sum of all ranks' products, plus the bias.

    The input is the rank's part, ``[..., in_features of the rank]``, or, with ``splits_input``, the whole,
    of which the rank takes its part.
    """

    def __init__(
        self, base: torch.nn.Linear, share: Share, communicator: Communicator, *, splits_input: bool
    ) -> None:
        super().__init__(share.length, base.out_features, base.bias is not None, **_like(base))
        _mark(self, share, None)
        self._communicator = communicator
        self._slice = share.slices[0] if splits_input else None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Compute ``x W + b`` with ``x`` and ``W`` divided over the ranks."""
        if self._slice is not None:
            input = input.narrow(-1, *self._slice)
        output = self._communicator.all_reduce(functional.linear(input, self.weight))
        return output if self.bias is None else output.add_(self.bias)


def divide_parameter(module: torch.nn.Module, name: str, share: Share) -> None:
    """Give ``module`` on the meta device the rank's share of its parameter ``name``."""
    whole = module.get_parameter(name)
    part = torch.empty(share.shape, device="meta", dtype=whole.dtype)
    module.register_parameter(name, torch.nn.Parameter(part, whole.requires_grad))
    mark_share(module.get_parameter(name), share)


def divide_embedding(table: torch.nn.Embedding, share: Share, communicator: Communicator) -> None:
    """Let ``table`` hold the rank's rows; its result is the sum of all ranks', of which one has the row."""
    divide_parameter(table, "weight", share)
    table.num_embeddings = share.length
    table.padding_idx = None
    _become(table, _VocabularyShare)
    table.__dict__.update(core_engine_first_row=share.slices[0][0], core_engine_communicator=communicator)


def sum_output(module: torch.nn.Module, communicator: Communicator) -> None:
    """Let ``module``, which holds shares of its parameters, return the sum of all ranks' results."""
    _become(module, _SummedOutput)
    module.__dict__.update(core_engine_communicator=communicator)


class _VocabularyShare:
    """Comes before a class of embeddings, whose own code (a scale, say) runs on the rows."""

    weight: torch.Tensor
    core_engine_first_row: int
    core_engine_communicator: Communicator

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Look up ``[...]`` → ``[..., embedding_dim]``."""
        row = input - self.core_engine_first_row
        elsewhere = (row < 0) | (row >= self.weight.shape[0])
        found = super().forward(row.masked_fill(elsewhere, 0))  # type: ignore[misc]  # of the class behind it
        return self.core_engine_communicator.all_reduce(found.masked_fill(elsewhere[..., None], 0))


class _SummedOutput:
    """Comes before a class whose result is a part of a sum."""

    core_engine_communicator: Communicator

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Compute what the class behind it does, and sum it over the ranks."""
        part = super().forward(*args, **kwargs)  # type: ignore[misc]  # of the class behind it
        return self.core_engine_communicator.all_reduce(part)


def _like(base: torch.nn.Linear) -> Any:
    return {"device": "meta", "dtype": base.weight.dtype}


def _mark(linear: torch.nn.Linear, share: Share, bias_share: Share | None) -> None:
    mark_share(linear.weight, share)
    if bias_share is not None:
        mark_share(linear.bias, bias_share)


def _become(module: Any, behaviour: type) -> None:
    module.__class__ = _joined(behaviour, type(module))  # type: ignore[arg-type]  # mypy takes the class for an instance


@cache
def _joined(behaviour: type, kind: Any) -> type:
    return type(f"Divided{kind.__name__}", (behaviour, kind), {"__module__": kind.__module__})
