"""Finds the linear layers that see every token of a step once: those that can take a LoRA adapter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["LinearWatch", "watch_linears"]


class LinearWatch:
    """Counts the calls of a model's linear layers, and those with one row per token."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._calls: dict[str, int] = defaultdict(int)
        self._token_calls: dict[str, int] = defaultdict(int)

    @property
    def token_linears(self) -> tuple[str, ...]:
        """Names of the layers that were called once, with the tokens in their order as rows.

        A layer whose weight the model uses without calling it is none, and neither are the experts of
        a mixture, which see the tokens that were routed to them.
        """
        return tuple(
            name
            for name, count in self._calls.items()
            if count == 1 and self._token_calls[name] == 1 and "experts" not in name.split(".")
        )

    def note(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Count one call of the layer called ``name``."""
        self._calls[name] += 1
        if len(arguments) == 1 and arguments[0].dim() >= 2 and arguments[0].shape[-2] == self._num_tokens:
            self._token_calls[name] += 1


@contextmanager
def watch_linears(model: torch.nn.Module, num_tokens: int) -> Iterator[LinearWatch]:
    """Watch every plain linear layer of ``model`` (also transformers' Conv1D) during a forward pass."""
    from transformers.pytorch_utils import Conv1D

    watch = LinearWatch(num_tokens)
    handles = []
    for name, module in model.named_modules():
        if type(module) in (torch.nn.Linear, Conv1D):

            def hook(_: torch.nn.Module, arguments: tuple[Any, ...], name: str = name) -> None:
                watch.note(name, arguments)

            handles.append(module.register_forward_pre_hook(hook))
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()
