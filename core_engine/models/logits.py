"""Logits of hidden rows, through the model's own ``ForCausalLM.forward``.

Models scale, cap, shift or project the hidden rows on their way to logits, each in its own code. The
engine therefore runs that code: a shallow copy of the model has its backbone replaced by a stub that
answers with the rows it was given.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import torch

from core_engine.models.signatures import accepted_arguments

__all__ = ["LogitsFunction", "make_logits_function"]

LogitsFunction = Callable[[torch.Tensor], torch.Tensor]


class _RowsOutput:
    """What the stub returns: the rows as last hidden state, None for everything else."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.last_hidden_state = rows

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)

    def __getitem__(self, index: int | slice) -> Any:
        return (self.last_hidden_state,)[index] if isinstance(index, slice) or index == 0 else None


class _StubBackbone(torch.nn.Module):
    """Takes the place of a backbone and answers with the rows that enter as ``inputs_embeds``."""

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> _RowsOutput:
        return _RowsOutput(inputs_embeds)


def make_logits_function(model: torch.nn.Module, backbone_name: str) -> LogitsFunction:
    """Return a function from hidden rows ``[R, hidden_size]`` to logits ``[R, vocab_size]``.

    ``backbone_name`` is the attribute of ``model`` that holds the backbone. The function shares the
    model's modules, so that weights that are moved or replaced later are seen.
    """
    head = copy.copy(model)
    # Module.__setattr__ writes into _modules, which a shallow copy shares with the original.
    head._modules = dict(model._modules)
    head._modules[backbone_name] = _StubBackbone()
    arguments = accepted_arguments(model, {"use_cache": False, "return_dict": True})

    def logits(rows: torch.Tensor) -> torch.Tensor:
        output = head.forward(inputs_embeds=rows[None], **arguments)
        return cast(torch.Tensor, output.logits)[0]

    return logits
