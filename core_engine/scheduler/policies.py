"""Policies: who runs first, and with that who is preempted (the last in order)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from core_engine.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from core_engine.engine.messages import CoreRequest

__all__ = ["POLICIES", "OrderKey", "Policy", "find_policy", "in_order_of_arrival", "in_order_of_priority"]

#: Smaller runs first. The last part is the sequence number of ``add``, so no two keys are equal.
OrderKey: TypeAlias = tuple[float, float, int]
#: Takes a request and its sequence number. A request's key never changes while it lives.
Policy: TypeAlias = Callable[["CoreRequest", int], OrderKey]


def in_order_of_arrival(request: CoreRequest, sequence: int) -> OrderKey:
    """First come, first served."""
    return (0, request.arrival_s, sequence)


def in_order_of_priority(request: CoreRequest, sequence: int) -> OrderKey:
    """Smaller priority first; within one priority first come, first served."""
    return (request.priority, request.arrival_s, sequence)


POLICIES: Mapping[str, Policy] = {"fcfs": in_order_of_arrival, "priority": in_order_of_priority}


def find_policy(name: str) -> Policy:
    """Return the policy called ``name``. Raises `ConfigError` with the names that there are."""
    if name not in POLICIES:
        raise ConfigError(
            f"unknown scheduling_policy {name!r}; possible: {', '.join(POLICIES)}."
            f"{did_you_mean(name, POLICIES)}"
        )
    return POLICIES[name]
