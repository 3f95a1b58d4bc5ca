"""What makes a step mixed, and the refusal of a device that cannot compute one."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from core_engine_sim.device import SimDevice
from core_engine_sim.errors import MixedStepError
from core_engine_sim.execution import launch

__all__ = ["refuse_mixed_step"]


def refuse_mixed_step(device: SimDevice, metadata: Mapping[str, torch.Tensor]) -> None:
    """Launch a kernel that raises `MixedStepError` where decodes stand beside prefills.

    A request decodes where it computes one token and has others in the cache; it prefills where it
    computes several. ``metadata`` is that of core's tiled attention.
    """

    def check_step(tile_rows: torch.Tensor, tile_positions: torch.Tensor) -> torch.Tensor:
        num_rows = int(tile_rows.max()) + 1
        num_tokens = torch.zeros(num_rows, dtype=torch.long)
        positions = torch.zeros(num_rows, dtype=torch.long)
        num_tokens.index_add_(0, tile_rows, (tile_positions >= 0).sum(1))
        positions.index_add_(0, tile_rows, tile_positions.clamp(min=0).sum(1))
        decodes, prefills = (num_tokens == 1) & (positions > 0), num_tokens > 1
        if decodes.any() and prefills.any():
            raise MixedStepError(
                f"{device} got {int(decodes.sum())} decodes and {int(prefills.sum())} prefills in one step "
                "and computes either; set Seams.splits_mixed_steps, or do not declare mixed_batches"
            )
        return num_tokens

    launch(device, check_step, metadata["tile_rows"], metadata["tile_positions"])
