"""The forward context: how a step's metadata reaches the attention layers without a global."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["ContextHolder", "ForwardContext"]


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """What attention layers and layers with LoRA adapters read during one forward pass."""

    #: One mapping per KV-cache group, from `AttentionBackend.build_metadata`, on the device.
    attention: tuple[Mapping[str, torch.Tensor], ...] = ()
    #: The pass measures memory: no cache is bound and none is read or written.
    is_profile_run: bool = False
    #: What `core_engine.lora.layers.lora_mask` made of the step; None in steps without adapters.
    lora_mask: torch.Tensor | None = None


class ContextHolder:
    """Owned by one runner and shared with its attention layers; holds the context of the pass under way."""

    __slots__ = ("current",)

    def __init__(self) -> None:
        self.current = ForwardContext()

    @contextmanager
    def activate(self, context: ForwardContext) -> Iterator[None]:
        """Make ``context`` current for the duration of a forward pass."""
        previous, self.current = self.current, context
        try:
            yield
        finally:
            self.current = previous
