"""Share: the part of a whole parameter that one rank holds."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

__all__ = ["Share", "divided_share", "mark_share", "share_of"]

_ATTRIBUTE = "core_engine_share"


@dataclass(frozen=True, slots=True)
class Share:
    """Slices of a parameter of shape ``whole`` along ``dim``, joined in their order.

    The rank's tensor has ``length`` entries along ``dim``; what the slices do not fill is zero.
    """

    whole: tuple[int, ...]
    dim: int
    #: First index and number of entries of each slice.
    slices: tuple[tuple[int, int], ...]
    length: int

    @classmethod
    def of(cls, whole: torch.Size, dim: int, *, rank: int, size: int, num_packed: int = 1) -> Share:
        """Return the share of ``rank`` where ``size`` ranks divide each of ``num_packed`` equal parts.

        All ranks have the same length, rounded up: the last ones may hold zeros at their end.
        """
        part = whole[dim] // num_packed
        length = -(-part // size)
        first = min(rank * length, part)
        count = min(length, part - first)
        slices = tuple((index * part + first, count) for index in range(num_packed))
        return cls(tuple(whole), dim, slices, length * num_packed)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the rank's tensor."""
        return (*self.whole[: self.dim], self.length, *self.whole[self.dim + 1 :])

    def take(self, tensor: torch.Tensor, device: str | torch.device) -> torch.Tensor:
        """Return the rank's part of the whole ``tensor``, contiguous, on ``device`` and a copy."""
        parts = [tensor.narrow(self.dim, first, count) for first, count in self.slices]
        missing = self.length - sum(count for _, count in self.slices)
        if missing:
            parts.append(tensor.new_zeros(*self.whole[: self.dim], missing, *self.whole[self.dim + 1 :]))
        if len(parts) > 1:
            return torch.cat(parts, self.dim).to(device)
        moved = parts[0].to(device)
        return moved.clone() if moved is parts[0] else moved.contiguous()


def mark_share(parameter: torch.Tensor, share: Share) -> None:
    """Note on ``parameter``, which holds the rank's part or will hold it, of what it is a part."""
    setattr(parameter, _ATTRIBUTE, share)


def share_of(parameter: torch.Tensor) -> Share | None:
    """Return what `mark_share` noted, or None for a parameter that every rank holds whole."""
    share: Share | None = getattr(parameter, _ATTRIBUTE, None)
    return share


def divided_share(model: torch.nn.Module) -> float:
    """Return which share of all elements of the whole model's parameters is divided, from 0 to 1."""
    whole = divided = 0
    for parameter in model.parameters():
        share = share_of(parameter)
        if share is None:
            whole += parameter.numel()
        else:
            divided += prod(share.whole)
    return divided / max(1, whole + divided)
