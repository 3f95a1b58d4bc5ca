"""Logits of hidden rows, through the model's own ``ForCausalLM.forward``.

Models scale, cap, shift or project the hidden rows on their way to logits, each in its own code. The
engine therefore runs that code: a shallow copy of the model has its backbone replaced by a stub that
answers with the rows it was given.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
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

    ``backbone_name`` is the (dotted) name of the part of ``model`` that computes hidden rows. The function
    shares the model's modules, so that weights that are moved or replaced later are seen.
    """
    head = _with_stub(model, backbone_name.split("."))
    arguments = accepted_arguments(model, {"use_cache": False, "return_dict": True})

    def logits(rows: torch.Tensor) -> torch.Tensor:
        output = head.forward(inputs_embeds=rows[None], **arguments)
        return cast(torch.Tensor, output.logits)[0]

    return logits


def _with_stub(module: torch.nn.Module, path: Sequence[str]) -> Any:
    if not path:
        return _StubBackbone()
    copied = copy.copy(module)
    # Module.__setattr__ writes into _modules, which a shallow copy shares with the original.
    copied._modules = dict(module._modules)
    copied._modules[path[0]] = _with_stub(module.get_submodule(path[0]), path[1:])
    return copied
