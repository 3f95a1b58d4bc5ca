"""ShapePolicy: which padded shapes a step may have. Pure: no device, no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["ExactShapes", "SamplingKind", "ShapePolicy", "StepKind", "StepShape"]


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


@dataclass(frozen=True, slots=True)
class SamplingKind:
    """Which parts of the sampler a step needs; static, so each kind may be a program of its own."""

    #: Every row takes its most likely token: no noise, no filters.
    all_greedy: bool
    #: Some row has a repetition, presence or frequency penalty.
    penalties: bool = False
    #: Some row adds to its logits: logit_bias, min_tokens, bad_words, grammar masks.
    bias: bool = False
    #: Some row has top_k, top_p or min_p.
    filters: bool = False


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

    def widen(self, kind: SamplingKind) -> SamplingKind:
        """Return the prepared sampler that serves ``kind``; by default each kind is its own."""
        return kind

    def warm_up_sampling_kinds(self) -> tuple[SamplingKind, ...]:
        """List every kind that ``widen`` can return; empty where samplers are not prepared."""
        return ()

    def widen_logprobs(self, num_logprobs: int) -> int:
        """Return how many most likely tokens "score" computes where ``num_logprobs`` are asked for.

        Never fewer, by default as many; the host takes what was asked for. Where shapes are prepared it is
        one number for all steps.
        """
        return num_logprobs


class ExactShapes(ShapePolicy):
    """No padding: devices that take any shape."""

    def pad(self, num_tokens: int, num_reqs: int, kind: StepKind) -> StepShape:
        """Return the step's own size."""
        return StepShape(num_tokens, num_reqs, kind)

    def warm_up_shapes(self) -> tuple[StepShape, ...]:
        """Return no shape: there is nothing to prepare."""
        return ()
