"""Drafters that know what the fake model will say, and err on purpose."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable

from scheduler.harness import MODEL, Engine

from core_engine.scheduler.drafter import Drafter
from core_engine.scheduler.request import RequestState

__all__ = ["draft_all_right", "draft_all_wrong", "draft_at_random", "use_drafters"]

#: (drafts that are right, possible drafts) → how many to propose and how many of them are right.
Plan = Callable[[int], tuple[int, int]]


class Oracle(Drafter):
    """Proposes the model's own next tokens; from the first wrong one on every token is off by one."""

    def __init__(self, tokens: array[int], future: list[int], plan: Plan) -> None:
        super().__init__(tokens, longest=7)
        self._future = future
        self._plan = plan

    def propose(self, most: int) -> list[int]:
        """Propose as the plan says."""
        count, num_right = self._plan(max(0, min(most, 7)))
        start = len(self._tokens)
        drafts = self._future[start : start + count]
        return [
            token if index < num_right else (token + 1) % MODEL.vocab_size
            for index, token in enumerate(drafts)
        ]

    def learn(self, num_drafts: int, num_accepted: int) -> None:
        """Learn nothing."""


def use_drafters(engine: Engine, plan: Plan) -> None:
    """Let requests that are added from now on draft by ``plan``."""
    drafts = engine.scheduler.drafts
    assert drafts is not None
    usual = drafts.new_drafter

    def new_drafter(request: RequestState) -> Drafter | None:
        if usual(request) is None:
            return None
        asked = request.request
        prompt = asked.prompt_token_ids.tolist()
        future = MODEL.generate(
            prompt, asked.params, request.max_total_tokens, seed=asked.seed, stream=asked.stream
        )
        return Oracle(request.tokens, prompt + future, plan)

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
