"""Causal attention over whole prompts, written plainly: what the paged kernels are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from core_engine.models.finder import FoundLayer
    from core_engine.models.loader import LoadedModel

__all__ = ["DenseAttention", "PackedPrompts", "attach_dense_attention"]


class PackedPrompts:
    """How the tokens of a pass divide into prompts; shared by the layers of one model."""

    def __init__(self) -> None:
        self.lengths: Sequence[int] = ()


class DenseAttention:
    """One layer's attention without a cache; every prompt is computed whole."""

    def __init__(self, layer: FoundLayer, prompts: PackedPrompts) -> None:
        self.layer = layer
        self.prompts = prompts

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attend within each prompt; shapes as in `AttentionBackend.forward`."""
        lengths = list(self.prompts.lengths)
        parts = zip(*(torch.split(tensor, lengths) for tensor in (query, key, value)), strict=True)
        return torch.cat([self._attend(q, k, v, sinks) for q, k, v in parts])

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor | None
    ) -> torch.Tensor:
        layer = self.layer
        groups = layer.num_heads // layer.num_kv_heads
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        scores = torch.einsum("qhd,khd->hqk", query.float(), key.float()) * layer.scale
        if layer.soft_cap is not None:
            scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
        positions = torch.arange(query.shape[0])
        distance = positions[:, None] - positions[None, :]
        hidden = distance < 0
        if layer.sliding_window is not None:
            hidden |= distance >= layer.sliding_window
        scores = scores.masked_fill(hidden, -torch.inf)
        if sinks is not None:
            column = sinks.float()[:, None, None].expand(-1, query.shape[0], 1)
            scores = torch.cat([scores, column], dim=-1)
        weights = scores.softmax(dim=-1)[..., : query.shape[0]]
        return torch.einsum("hqk,khd->qhd", weights, value.float()).to(query.dtype)


def attach_dense_attention(model: LoadedModel) -> PackedPrompts:
    """Give every layer of ``model`` a dense attention and return the object that says how to divide."""
    prompts = PackedPrompts()
    for layer in model.layers:
        model.attach(layer.name, DenseAttention(layer, prompts))
    return prompts
