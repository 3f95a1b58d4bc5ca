"""Policies: who runs first, and who gives blocks back when the pool is dry."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from core_engine.errors import ContractError

if TYPE_CHECKING:
    from core_engine.engine.messages import CoreRequest
    from core_engine.scheduler.request import RequestState

__all__ = [
    "POLICIES",
    "SECONDS_PER_PROMPT_TOKEN",
    "FirstComeFirstServed",
    "OrderKey",
    "Policy",
    "PriorityFirst",
    "ShortestPromptFirst",
    "order_of",
    "victim_of",
]

logger = logging.getLogger(__name__)

#: Smaller runs first. The last part is the sequence number of ``add``, so no two keys are equal.
OrderKey: TypeAlias = tuple[float, float, int]

#: What a prompt token counts as under `ShortestPromptFirst`: a prefill of 1,000 tokens a second.
SECONDS_PER_PROMPT_TOKEN = 0.001


class Policy(ABC):
    """The order of requests, among those that wait and those that run, and the choice of a victim."""

    @abstractmethod
    def order(self, request: CoreRequest, sequence: int) -> OrderKey:
        """Return the key of ``request``, once, when it comes in; the smallest key runs first.

        ``sequence`` counts the requests and must be the last part of the key.
        """

    def victim(self, running: Sequence[RequestState]) -> int:
        """Return the index of the request that loses its blocks; the last one unless overridden.

        ``running`` stands in order and is only to be read. Index 0 is possible only where it is alone:
        the first in order never loses anything to others, so that there is always progress.
        """
        return len(running) - 1


class FirstComeFirstServed(Policy):
    """In order of arrival."""

    def order(self, request: CoreRequest, sequence: int) -> OrderKey:
        """Order by arrival alone."""
        return (0, request.arrival_s, sequence)


class PriorityFirst(Policy):
    """Smaller ``priority`` first; within one priority in order of arrival."""

    def order(self, request: CoreRequest, sequence: int) -> OrderKey:
        """Order by priority, then arrival."""
        return (request.priority, request.arrival_s, sequence)


class ShortestPromptFirst(Policy):
    """Shorter prompts first, with ageing.

    The key is ``arrival_s + SECONDS_PER_PROMPT_TOKEN * prompt tokens``. A prompt of L tokens is
    overtaken by one of S < L tokens only if that arrived within ``(L - S) * SECONDS_PER_PROMPT_TOKEN``
    seconds after it, so nothing overtakes it that arrives more than ``L * SECONDS_PER_PROMPT_TOKEN``
    seconds later.
    """

    def order(self, request: CoreRequest, sequence: int) -> OrderKey:
        """Order by arrival, delayed by the prompt's length."""
        delay_s = SECONDS_PER_PROMPT_TOKEN * len(request.prompt_token_ids)
        return (0, request.arrival_s + delay_s, sequence)


#: The built-in policies by name.
POLICIES: Mapping[str, type[Policy]] = {
    "fcfs": FirstComeFirstServed,
    "priority": PriorityFirst,
    "shortest-prompt-first": ShortestPromptFirst,
}


def order_of(policy: Policy, request: CoreRequest, sequence: int) -> OrderKey:
    """Ask ``policy`` for a key. Raises `ContractError` for one that cannot be ordered."""
    key: object = policy.order(request, sequence)
    sound = (
        isinstance(key, tuple)
        and len(key) == 3
        and all(isinstance(part, int | float) and part == part for part in key)
        and key[2] == sequence
    )
    if not sound:
        raise ContractError(
            f"{type(policy).__name__}.order must return (number, number, sequence) with sequence "
            f"{sequence}, got {key!r}"
        )
    return key  # type: ignore[return-value]  # checked above


def victim_of(policy: Policy, running: Sequence[RequestState]) -> int:
    """Ask ``policy`` for a victim among ``running``, at least one.

    An answer that is not possible counts as the last in order, with a warning: a step is under
    construction, and a wrong choice is no reason to lose it.
    """
    last = len(running) - 1
    try:
        index = policy.victim(running)
        possible = isinstance(index, int) and min(1, last) <= index <= last
        problem = f"returned {index!r}, and {min(1, last)} to {last} are possible"
    except Exception as failure:
        possible, problem = False, f"raised {type(failure).__name__}: {failure}"
    if possible:
        return index
    logger.warning("%s.victim %s; the last in order is taken", type(policy).__name__, problem)
    return last
