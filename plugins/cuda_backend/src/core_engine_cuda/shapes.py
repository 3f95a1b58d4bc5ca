"""CapturedShapes: decode steps padded to the sizes that were captured, all else as it is. Torch-free."""

from __future__ import annotations

from bisect import bisect_left

from core_engine.plugin.runtime import SamplingKind, ShapePolicy, StepKind, StepShape

__all__ = ["CapturedShapes"]


class CapturedShapes(ShapePolicy):
    """Pads decode steps to ``sizes`` (rising, at least one); larger ones and mixed steps stay exact."""

    def __init__(self, sizes: tuple[int, ...], max_logprobs: int) -> None:
        self.sizes = sizes
        self._max_logprobs = max_logprobs

    def pad(self, num_tokens: int, num_reqs: int, kind: StepKind) -> StepShape:
        """Return the smallest captured shape that holds a decode step, or the step's own size."""
        if kind is StepKind.DECODE and num_reqs <= self.sizes[-1]:
            size = self.sizes[bisect_left(self.sizes, num_reqs)]
            return StepShape(size, size, kind)
        return StepShape(num_tokens, num_reqs, kind)

    def warm_up_shapes(self) -> tuple[StepShape, ...]:
        """List the shapes that are captured, the largest first: later ones find its memory to reuse."""
        return tuple(StepShape(size, size, StepKind.DECODE) for size in reversed(self.sizes))

    def warm_up_sampling_kinds(self) -> tuple[SamplingKind, ...]:
        """List the samplers that are captured: those without bias and penalties, whose inputs are large."""
        return (
            SamplingKind(all_greedy=True),
            SamplingKind(all_greedy=False),
            SamplingKind(all_greedy=False, filters=True),
        )

    def widen(self, kind: SamplingKind) -> SamplingKind:
        """Let greedy rows with filters, which change nothing, take the greedy sampler."""
        if kind.all_greedy and kind.filters and not kind.penalties and not kind.bias:
            return SamplingKind(all_greedy=True)
        return kind

    def widen_logprobs(self, num_logprobs: int) -> int:
        """Return the most that may be asked for, so that one graph serves all."""
        return self._max_logprobs
