"""Ranks as threads of one process: for tests of what is divided, without processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch

from core_engine.parallel.communicator import Communicator

__all__ = ["ThreadCommunicator", "run_ranks", "thread_communicators"]

T = TypeVar("T")
#: A rank that waits longer for the others has lost them.
_TIMEOUT_S = 60.0


class _Meeting:
    """Where the threads meet and leave their tensors."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=_TIMEOUT_S)
        self.tensors: list[torch.Tensor | None] = [None] * size


class ThreadCommunicator(Communicator):
    """One of several ranks, each in a thread of its own; a rank that fails breaks the others' waiting."""

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank = rank
        self.size = len(meeting.tensors)
        self._meeting = meeting
        #: How often each operation was called.
        self.calls = {"all_reduce": 0, "all_gather": 0}

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum, added up in the order of the ranks."""
        self.calls["all_reduce"] += 1
        first, *others = self._exchange(tensor)
        total = first.clone()
        for other in others:
            total += other
        self._meeting.barrier.wait()
        return total

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return all tensors joined along the last dimension."""
        self.calls["all_gather"] += 1
        joined = torch.cat(self._exchange(tensor), -1)
        self._meeting.barrier.wait()
        return joined

    def close(self) -> None:
        """Break the others' waiting."""
        self._meeting.barrier.abort()

    def _exchange(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        self._meeting.tensors[self.rank] = tensor
        self._meeting.barrier.wait()
        tensors = [other for other in self._meeting.tensors if other is not None]
        if len({(other.shape, other.dtype) for other in tensors}) != 1:
            raise ValueError(f"the ranks brought different tensors: {[tuple(t.shape) for t in tensors]}")
        return tensors


def thread_communicators(size: int) -> tuple[ThreadCommunicator, ...]:
    """Return the communicators of ``size`` ranks that belong together."""
    meeting = _Meeting(size)
    return tuple(ThreadCommunicator(rank, meeting) for rank in range(size))


def run_ranks(communicators: tuple[ThreadCommunicator, ...], run: Callable[[int], T]) -> list[T]:
    """Run ``run(rank)`` in a thread for each rank and return the results; raise the first rank's failure."""
    results: dict[int, T] = {}
    failures: list[BaseException] = []

    def guarded(communicator: ThreadCommunicator) -> None:
        try:
            results[communicator.rank] = run(communicator.rank)
        except BaseException as error:
            failures.append(error)
            communicator.close()

    threads = [threading.Thread(target=guarded, args=(communicator,)) for communicator in communicators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for failure in failures:
        if not isinstance(failure, threading.BrokenBarrierError):
            raise failure
    if failures:
        raise failures[0]
    return [results[rank] for rank in range(len(communicators))]
