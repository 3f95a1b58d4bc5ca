"""SimPagedAttention: core's reference attention as one kernel of the simulated device."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from core_engine.plugin.runtime import LayerParams, ReferencePagedAttention
from core_engine_sim.device import SimDevice
from core_engine_sim.execution import launch

__all__ = ["SimPagedAttention"]

Cache = tuple[torch.Tensor, torch.Tensor]


class SimPagedAttention(ReferencePagedAttention):
    """Static outside, a loop inside.

    The program sees block tables as wide as the longest sequence that the engine admits. The kernel
    reads the positions and stops at the longest context of the step, as a real kernel's loop does.
    """

    name = "sim-paged"

    def __init__(self, device: SimDevice) -> None:
        super().__init__()
        self._device = device

    def forward(
        self,
        layer: LayerParams,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        cache: Cache,
        metadata: Mapping[str, torch.Tensor],
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Launch the kernel; see `AttentionBackend.forward`."""
        attend = super().forward

        def paged_attention(
            query: torch.Tensor,
            key: torch.Tensor | None,
            value: torch.Tensor | None,
            cache: Cache,
            metadata: Mapping[str, torch.Tensor],
            sinks: torch.Tensor | None,
        ) -> torch.Tensor:
            block_size = cache[0].shape[1]
            num_blocks = int(metadata["tile_positions"].max()) // block_size + 1
            block_tables = metadata["block_tables"][:, : max(1, num_blocks)]
            return attend(layer, query, key, value, cache, {**metadata, "block_tables": block_tables}, sinks)

        return launch(self._device, paged_attention, query, key, value, cache, metadata, sinks)
