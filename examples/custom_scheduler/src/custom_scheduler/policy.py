"""A policy: requests that want few tokens run first."""

from __future__ import annotations

from collections.abc import Sequence

from core_engine.plugin.scheduling import CoreRequest, OrderKey, Policy, RequestState

#: The plugin API that this module was written for.
CORE_ENGINE_API = "0.1"

#: What a wanted token counts as, so that long answers are not put off for ever.
SECONDS_PER_TOKEN = 0.02


class ShortAnswersFirst(Policy):
    """Shortest ``max_tokens`` first, with ageing; where the pool is dry, the least work is lost."""

    def order(self, request: CoreRequest, sequence: int) -> OrderKey:
        """A request is overtaken only by what arrives before its own tokens' time is over."""
        return (0, request.arrival_s + SECONDS_PER_TOKEN * request.max_tokens, sequence)

    def victim(self, running: Sequence[RequestState]) -> int:
        """Of all but the first, choose the one with the fewest tokens to compute again."""
        if len(running) == 1:
            return 0
        return min(range(1, len(running)), key=lambda index: len(running[index].tokens))
