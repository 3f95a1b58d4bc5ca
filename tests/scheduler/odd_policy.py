"""A policy whose victims are any but the first, for the random machines."""

from __future__ import annotations

from collections.abc import Sequence

from core_engine.scheduler.policies import PriorityFirst
from core_engine.scheduler.request import RequestState

CORE_ENGINE_API = "0.1"


class AnyVictim(PriorityFirst):
    """Chooses by the number of tokens there are: different from step to step, but repeatable."""

    def victim(self, running: Sequence[RequestState]) -> int:
        if len(running) == 1:
            return 0
        return 1 + sum(len(each.tokens) for each in running) % (len(running) - 1)
