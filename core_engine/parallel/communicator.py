"""Communicator: how the ranks of one model exchange tensors; a backend brings its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["Communicator"]


class Communicator(ABC):
    """Collective operations among ``size`` ranks, of which this is number ``rank``.

    All ranks call the same operations in the same order with tensors of the same shape and data type;
    an operation waits for the others, so a rank that fails keeps them waiting until it is ended. The results
    are the same bits on every rank: what follows from them, sampled tokens above all, needs no agreement.
    """

    rank: int
    size: int

    @abstractmethod
    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' tensors; it may be computed in place, so the argument is given up."""

    @abstractmethod
    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return all ranks' tensors joined along the last dimension, rank 0 first: ``[..., size * n]``."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group; nothing may be called afterwards. A second call does nothing."""
