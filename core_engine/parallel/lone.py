"""LoneCommunicator: stands in for a group of ranks where shapes are all that matters."""

from __future__ import annotations

import torch

from core_engine.parallel.communicator import Communicator

__all__ = ["LoneCommunicator"]


class LoneCommunicator(Communicator):
    """Answers with the shapes of ``size`` ranks and waits for none; tensors on the meta device will do."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor itself."""
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor ``size`` times along its last dimension."""
        return torch.cat([tensor] * self.size, -1)

    def close(self) -> None:
        """Do nothing."""
