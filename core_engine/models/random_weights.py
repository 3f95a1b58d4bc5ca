"""Fills a model with random weights: to measure speed and memory of a model whose weights are not here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from core_engine.models._quiet import quiet_transformers
from core_engine.models.attention_hook import ATTENTION_NAME
from core_engine.models.weights import transforming_class

__all__ = ["random_weights"]

_SPREAD = 0.02


def random_weights(
    model_class: Any,
    config: Any,
    *,
    dtype: torch.dtype,
    device: str,
    experts: str | None,
    transform: Callable[[torch.nn.Module], None],
    progress: bool,
) -> Any:
    """Return the model as `core_engine.models.weights.read_weights` does, with weights drawn on ``device``.

    Matrices are normal with a deviation of 0.02, other parameters 1 and biases 0, so that logits are numbers.
    The draw is the same in every process, so parameters that all ranks hold whole are equal.
    """
    # transformers places weights on other devices through accelerate, which the CPU does without.
    placement = {} if device == "cpu" else {"device_map": {"": device}}
    with quiet_transformers(progress=progress):
        # Of an empty checkpoint all is missing, and buffers get the values that their model gives them.
        model = transforming_class(model_class, transform).from_pretrained(
            None,
            config=config,
            state_dict={},
            dtype=dtype,
            attn_implementation=ATTENTION_NAME,
            experts_implementation=experts,
            **placement,
        )
    model.__class__ = model_class
    _draw(model, device)
    return model.requires_grad_(False).eval()


@torch.no_grad()
def _draw(model: torch.nn.Module, device: str) -> None:
    # Modules that took the place of transformers' own are not known to its initialisation.
    generator = torch.Generator(device).manual_seed(0)
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            parameter.normal_(std=_SPREAD, generator=generator)
        else:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
