"""LoRALinear: a linear layer to which every adapter in a slot adds its low-rank product."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional

from core_engine.attention.context import ContextHolder
from core_engine.config import EngineConfig, ModelConfig
from core_engine.models.layer_transforms import LayerTransform

__all__ = ["LoRALinear", "LoRATransform", "lora_mask"]


class LoRALinear(torch.nn.Module):
    """Computes ``x W + b`` and, for each token with an adapter, adds ``x Aᵀ Bᵀ · scale`` of its adapter.

    The matrices of all slots are stacked: A is ``[slots · rank, in_features]``, B (transposed and
    scaled) ``[slots · rank, out_features]``; rows beyond an adapter's rank are zero. One product with
    all slots, of which a mask keeps each token's own (`lora_mask`), has the same shape whatever the
    batch holds, and gathers nothing per token.

    It takes over the parameters ``weight`` and ``bias`` of the layer that it replaces, under these names.
    """

    lora_a: torch.Tensor
    lora_b: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, base: torch.nn.Module, *, is_transposed: bool) -> None:
        super().__init__()
        weight: Any = base.weight
        bias: Any = getattr(base, "bias", None)
        self.register_parameter("weight", weight)
        self.register_parameter("bias", bias)
        #: The weight is ``[in_features, out_features]``, as in transformers' Conv1D.
        self.is_transposed = is_transposed
        rows, columns = weight.shape
        self.in_features, self.out_features = (rows, columns) if is_transposed else (columns, rows)
        self._context: ContextHolder | None = None

    def attach(self, lora_a: torch.Tensor, lora_b: torch.Tensor, context: ContextHolder) -> None:
        """Give the layer its stacked matrices, on the device, and the runner's context holder."""
        self.register_buffer("lora_a", lora_a, persistent=False)
        self.register_buffer("lora_b", lora_b, persistent=False)
        self._context = context

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute ``[..., num_tokens, in_features]`` → ``[..., num_tokens, out_features]``."""
        result = self._base(x)
        others = None if self._context is None else self._context.current.lora_mask
        if others is None:
            return result
        # Not a product with 0 and 1: what overflows in a foreign slot must not reach this token as NaN.
        hidden = functional.linear(x, self.lora_a).masked_fill(others, 0.0)
        return result + torch.matmul(hidden, self.lora_b)

    def _base(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_transposed:
            return functional.linear(x, self.weight, self.bias)
        assert self.bias is not None  # Conv1D has one
        rows = torch.addmm(self.bias, x.reshape(-1, self.in_features), self.weight)
        return rows.reshape(*x.shape[:-1], self.out_features)


class LoRATransform(LayerTransform):
    """Makes the linear layers of ``names`` able to take adapters.

    It comes before a backend's transforms: adapters name the layers of the checkpoint, which those may
    merge. A later transform finds `LoRALinear` in their place.
    """

    name = "lora"

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def apply(self, model: torch.nn.Module, config: EngineConfig, facts: ModelConfig) -> int:
        """Replace each layer and return how many there were."""
        for name in self._names:
            base = model.get_submodule(name)
            parent, _, attribute = name.rpartition(".")
            replacement = LoRALinear(base, is_transposed=not isinstance(base, torch.nn.Linear))
            setattr(model.get_submodule(parent), attribute, replacement)
        return len(self._names)


def lora_mask(slots: torch.Tensor, *, num_slots: int, rank: int) -> torch.Tensor:
    """Return bool ``[num_tokens, num_slots · rank]``: True in the columns of slots other than the token's.

    ``slots`` is int32 ``[num_tokens]``, -1 for tokens without an adapter.
    """
    columns = torch.arange(num_slots, dtype=slots.dtype, device=slots.device)
    foreign = slots[:, None] != columns[None, :]
    return foreign[:, :, None].expand(-1, -1, rank).reshape(slots.shape[0], num_slots * rank)
