"""OrderedRequests: a set of requests kept in the order of their policy."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from core_engine.scheduler.request import RequestState

__all__ = ["OrderedRequests"]

_order = attrgetter("order")


class OrderedRequests:
    """Requests by ascending order key; the scheduler has two, those that run and those that wait."""

    __slots__ = ("_requests",)

    def __init__(self) -> None:
        self._requests: list[RequestState] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, index: int) -> RequestState:
        return self._requests[index]

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._requests)

    def add(self, request: RequestState) -> None:
        """Put ``request`` in its place."""
        insort(self._requests, request, key=_order)

    def remove(self, request: RequestState) -> None:
        """Take ``request`` out; it is in the set."""
        del self._requests[bisect_left(self._requests, request.order, key=_order)]
