"""Rotary embeddings whose frequencies would follow the longest position in the batch.

transformers chooses the frequencies of ``longrope`` and ``dynamic`` anew in every forward pass, from the
largest position at hand; in a packed batch one request would change another's rows. ``longrope`` has two
sets of frequencies, so the engine chooses one, once, by the longest sequence it will serve. ``dynamic``
has as many sets as there are lengths and is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from core_engine.errors import UnsupportedModel

__all__ = ["fix_longrope", "refuse_dynamic_rotary"]


def _rotary_kinds(model: torch.nn.Module) -> Iterator[tuple[Any, str | None, str]]:
    """Yield (module, layer type or None, rope type) of every rotary embedding of ``model``."""
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, str):
            yield module, None, kind
        elif isinstance(kind, dict):
            yield from ((module, layer_type, name) for layer_type, name in kind.items())


def refuse_dynamic_rotary(model: torch.nn.Module) -> None:
    """Raise `UnsupportedModel` when a rotary embedding of ``model`` is dynamic."""
    for _, _, kind in _rotary_kinds(model):
        if "dynamic" in kind:
            raise UnsupportedModel(
                f"{type(model).__name__} is not supported: its rotary embedding is {kind!r}, whose "
                "frequencies change with the longest sequence in a batch"
            )


def fix_longrope(model: torch.nn.Module, max_model_len: int) -> None:
    """Choose the frequencies of every longrope embedding of a loaded ``model`` for good.

    A model that will serve sequences longer than its original length gets the long factors for all
    sequences, else the short ones.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    for module, layer_type, kind in list(_rotary_kinds(model)):
        if kind != "longrope":
            continue
        config = module.config
        parameters = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
        original = parameters["original_max_position_embeddings"]
        buffer: torch.Tensor = getattr(module, "inv_freq" if layer_type is None else f"{layer_type}_inv_freq")
        length = original + 1 if max_model_len > original else original
        keywords = {} if layer_type is None else {"layer_type": layer_type}
        frequencies, _ = ROPE_INIT_FUNCTIONS[kind](config, buffer.device, seq_len=length, **keywords)
        buffer.copy_(frequencies)
        # The decorator around forward compares with "longrope" and "dynamic"; any other name leaves
        # the buffer alone. The buffer and the attention factor are all that forward reads.
        if layer_type is None:
            module.rope_type = "longrope-fixed"
        else:
            module.rope_type = {**module.rope_type, layer_type: "longrope-fixed"}
