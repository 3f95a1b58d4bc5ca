"""Attention on the simulated device: a paged kernel, or a dense one under core's emulation."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from core_engine.plugin.runtime import (
    AttentionBackend,
    AttentionNeeds,
    DenseKernel,
    EmulatedChunkedPrefill,
    LayerParams,
    ReferencePagedAttention,
    TorchDenseKernel,
)
from core_engine_sim.device import SimDevice
from core_engine_sim.execution import launch
from core_engine_sim.mixed_steps import refuse_mixed_step

__all__ = ["SimDenseAttention", "SimDenseKernel", "SimPagedAttention", "make_attention"]

Cache = tuple[torch.Tensor, torch.Tensor]


class SimPagedAttention(ReferencePagedAttention):
    """Core's reference attention as one kernel: static outside, a loop inside.

    The program sees block tables as wide as the longest sequence that the engine admits. The kernel
    reads the positions and stops at the longest context of the step, as a real kernel's loop does.
    """

    name = "sim-paged"

    def __init__(self, device: SimDevice, *, mixes: bool = True) -> None:
        super().__init__()
        self._device = device
        self._mixes = mixes

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

        if not self._mixes:
            refuse_mixed_step(self._device, metadata)
        return launch(self._device, paged_attention, query, key, value, cache, metadata, sinks)


class SimDenseKernel(DenseKernel):
    """Torch's dense attention as one kernel of the device."""

    name = "sim-dense"

    def __init__(self, device: SimDevice) -> None:
        self._device = device
        self._host_kernel = TorchDenseKernel()

    def supports(self, needs: AttentionNeeds) -> str | None:
        """Serve what torch's kernel serves."""
        return self._host_kernel.supports(needs)

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        lengths: torch.Tensor,
        *,
        scale: float,
        sliding_window: int | None = None,
        soft_cap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Launch the kernel; see `DenseKernel.attend`."""

        def dense_attention(*tensors: torch.Tensor) -> torch.Tensor:
            return self._host_kernel.attend(*tensors, scale=scale, sliding_window=sliding_window)

        return launch(self._device, dense_attention, query, keys, values, lengths)


class SimDenseAttention(EmulatedChunkedPrefill):
    """Core's emulation on a device that cannot mix prefill and decode in one step."""

    def __init__(self, device: SimDevice) -> None:
        super().__init__(SimDenseKernel(device))
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
        """Refuse a mixed step, then do as the emulation does; see `AttentionBackend.forward`."""
        refuse_mixed_step(self._device, metadata)
        return super().forward(layer, query, key, value, cache, metadata, sinks)


def make_attention(device: SimDevice, kernel: str, *, mixes: bool) -> AttentionBackend:
    """Return the attention over ``kernel``, "paged" or "dense"; the dense one never mixes."""
    return SimDenseAttention(device) if kernel == "dense" else SimPagedAttention(device, mixes=mixes)
