"""Drafters that know what a request will say, and err on purpose."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence

from core_engine.scheduler.base import QueueScheduler
from core_engine.scheduler.drafter import Drafter
from core_engine.scheduler.request import RequestState

__all__ = ["Plan", "draft_all_right", "draft_all_wrong", "draft_at_random", "use_oracles"]

#: How many drafts may be proposed → how many are, and how many of them are right.
Plan = Callable[[int], tuple[int, int]]


class Oracle(Drafter):
    """Proposes what will come; from the first wrong draft on every token is off by one."""

    def __init__(self, tokens: array[int], text: Sequence[int], plan: Plan, longest: int) -> None:
        super().__init__(tokens, longest)
        self._text = text
        self._plan = plan

    def propose(self, most: int) -> list[int]:
        """Propose as the plan says."""
        count, num_right = self._plan(max(0, min(most, self._longest)))
        start = len(self._tokens)
        coming = self._text[start : start + count]
        return [token if index < num_right else token ^ 1 for index, token in enumerate(coming)]

    def learn(self, num_drafts: int, num_accepted: int) -> None:
        """Learn nothing."""


def use_oracles(
    scheduler: QueueScheduler, plan: Plan, text_of: Callable[[RequestState], Sequence[int]]
) -> None:
    """Let requests that are added from now on draft by ``plan``; ``text_of`` knows prompt and answer."""
    drafts = scheduler.drafts
    assert drafts is not None
    usual, longest = drafts.new_drafter, scheduler.limits.num_draft_tokens

    def new_drafter(request: RequestState) -> Drafter | None:
        if usual(request) is None:
            return None
        return Oracle(request.tokens, text_of(request), plan, longest)

    drafts.new_drafter = new_drafter  # type: ignore[method-assign]


def draft_all_right(most: int) -> tuple[int, int]:
    return most, most


def draft_all_wrong(most: int) -> tuple[int, int]:
    return most, 0


def draft_at_random(seed: int) -> Plan:
    draw = random.Random(seed)

    def plan(most: int) -> tuple[int, int]:
        count = draw.randint(0, most)
        return count, draw.randint(0, count)

    return plan
