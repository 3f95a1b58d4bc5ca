"""ShapePolicy: which padded shapes a step may have. Pure: no device, no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["ExactShapes", "ShapePolicy", "StepKind", "StepShape"]


class StepKind(StrEnum):
    """What a step consists of."""

    #: Every request computes exactly one token.
    DECODE = "decode"
    #: At least one request computes several tokens.
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class StepShape:
    """The padded shape of a step: ``num_tokens`` flat tokens of at most ``num_reqs`` requests."""

    num_tokens: int
    num_reqs: int
    kind: StepKind


class ShapePolicy(ABC):
    """Maps the real size of a step to the shape that the device computes.

    Its answers depend on the arguments and the configuration only, so the scheduler may ask for the
    cost of a step before it exists.
    """

    @abstractmethod
    def pad(self, num_tokens: int, num_reqs: int, kind: StepKind) -> StepShape:
        """Return the smallest allowed shape that holds the step; never smaller than the step.

        Raises `ValueError` when no allowed shape holds it: the scheduler must not build such a step.
        """

    @abstractmethod
    def warm_up_shapes(self) -> tuple[StepShape, ...]:
        """List every shape that ``pad`` can return; empty where shapes are free."""


class ExactShapes(ShapePolicy):
    """No padding: devices that take any shape."""

    def pad(self, num_tokens: int, num_reqs: int, kind: StepKind) -> StepShape:
        """Return the step's own size."""
        return StepShape(num_tokens, num_reqs, kind)

    def warm_up_shapes(self) -> tuple[StepShape, ...]:
        """Return no shape: there is nothing to prepare."""
        return ()
