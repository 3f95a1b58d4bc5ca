"""Roster: who waits, who runs, what they hold, and what the runner has yet to be told of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from core_engine.kv_cache.group_kind import NEVER
from core_engine.scheduler.columns import RequestColumns, Slots
from core_engine.scheduler.ordered_requests import OrderedRequests
from core_engine.scheduler.request import RequestState, RequestStatus
from core_engine.scheduler.step_rows import RunningSet

if TYPE_CHECKING:
    from core_engine.kv_cache.manager import KVCacheManager
    from core_engine.scheduler.step_in_flight import StepInFlight

__all__ = ["BoolArray", "Roster"]

BoolArray = npt.NDArray[np.bool_]


class Roster:
    """All unfinished requests.

    A request that leaves the running set while steps of its own are in flight keeps its slot and its
    blocks until the last of them has come back (``release_drained``).
    """

    def __init__(self, kv: KVCacheManager, *, max_num_running: int, prefix_caching: bool) -> None:
        self._kv = kv
        self._prefix_caching = prefix_caching
        #: Twice as many slots as run: those who left may hold theirs while others come in.
        self.columns = RequestColumns(2 * max_num_running)
        self.requests: dict[str, RequestState] = {}
        self.waiting = OrderedRequests()
        self.running = OrderedRequests()
        #: Blocks of requests that have left and whose steps are still in flight.
        self.num_draining_blocks = 0
        self.num_preemptions = 0
        self._running_set: RunningSet | None = None
        self._preempted_ids: list[str] = []
        self._finished_ids: list[str] = []

    @property
    def running_set(self) -> RunningSet:
        """The running requests as columns; the same object while the set is unchanged."""
        if self._running_set is None:
            self._running_set = RunningSet.of(list(self.running))
        return self._running_set

    @property
    def has_news(self) -> bool:
        """Whether the runner has to be told of an end or a preemption."""
        return bool(self._finished_ids or self._preempted_ids)

    @property
    def has_preempted(self) -> bool:
        """Whether a request lost its blocks since ``take_news``."""
        return bool(self._preempted_ids)

    def take_news(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the ids that were preempted and those that ended since the last call."""
        if not self.has_news:
            return (), ()
        news = tuple(self._preempted_ids), tuple(self._finished_ids)
        self._preempted_ids, self._finished_ids = [], []
        return news

    def blocks_come_back(self, slots: Slots) -> bool:
        """Say whether steps in flight free blocks: of those who left, or behind the windows at ``slots``."""
        if self.num_draining_blocks:
            return True
        return self._kv.frees_early and bool(self.columns.num_in_flight[slots].any())

    def enter(self, request: RequestState) -> None:
        """Let a new request wait."""
        self.requests[request.request_id] = request
        self.waiting.add(request)

    def run(self, request: RequestState, num_cached_tokens: int) -> None:
        """Move a waiting request, whose first blocks are taken, to those that run."""
        block_size = self._kv.block_size
        request.slot = self.columns.occupy(
            num_computed=num_cached_tokens,
            num_tokens=len(request.tokens),
            max_computed=request.max_total_tokens - 1,
            capacity=len(request.blocks) * block_size,
            commit_at=num_cached_tokens + block_size if self._prefix_caching else NEVER,
            free_at=self._kv.free_behind(request.blocks, num_cached_tokens),
        )
        request.status = RequestStatus.RUNNING
        self.waiting.remove(request)
        self.running.add(request)
        self._running_set = None

    def preempt(self, request: RequestState) -> None:
        """Take the blocks of a running request away and let it wait again."""
        request.status = RequestStatus.PREEMPTED
        self._leave_running(request)
        self.waiting.add(request)
        self._preempted_ids.append(request.request_id)
        self.num_preemptions += 1

    def end(self, request: RequestState) -> None:
        """Forget an unfinished request; its id may be used again."""
        del self.requests[request.request_id]
        was, request.status = request.status, RequestStatus.FINISHED
        if was is not RequestStatus.WAITING:
            self._finished_ids.append(request.request_id)
        if was is RequestStatus.RUNNING:
            self._leave_running(request)
        else:
            self.waiting.remove(request)

    def release_drained(self, record: StepInFlight, stale: BoolArray) -> None:
        """Free what the ``stale`` rows (requests that left since) held, if ``record`` was their last step."""
        if not np.count_nonzero(stale):
            return
        for row in np.flatnonzero(stale & (self.columns.num_in_flight[record.slots] == 0)).tolist():
            request = record.requests[row]
            self.num_draining_blocks -= request.blocks.num_held
            self._give_back(request)

    def _leave_running(self, request: RequestState) -> None:
        self.running.remove(request)
        self._running_set = None
        self.columns.epoch[request.slot] += 1
        if self.columns.num_in_flight[request.slot]:
            self.num_draining_blocks += request.blocks.num_held
        else:
            self._give_back(request)

    def _give_back(self, request: RequestState) -> None:
        self._kv.free(request.blocks)
        self.columns.vacate(request.slot)
        request.slot = -1
