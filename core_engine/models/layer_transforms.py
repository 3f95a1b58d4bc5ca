"""LayerTransforms: replace modules of transformers' models by structure, before weights are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from core_engine.config import EngineConfig, ModelConfig

__all__ = ["LayerTransform"]


class LayerTransform(ABC):
    """One rewrite of a model on the meta device.

    A transform recognises modules by their structure (attributes, parameter shapes), never by the
    model's name. It must keep the names of the parameters that it keeps, so that weights still find
    them.

    Where LoRA is on, the layers that can take an adapter are `core_engine.lora.layers.LoRALinear` before
    any other transform runs. Those must stay callable under their names: a transform that merges plain
    linear layers leaves them alone.
    """

    #: Short name for the start log.
    name: str

    @abstractmethod
    def apply(self, model: torch.nn.Module, config: EngineConfig, facts: ModelConfig) -> int:
        """Rewrite ``model`` in place and return how many modules were replaced."""
