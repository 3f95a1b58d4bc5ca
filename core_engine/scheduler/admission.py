"""Admission: which waiting requests join the running ones in a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from core_engine.scheduler.adapter_seats import AdapterSeats
from core_engine.scheduler.request import RequestState, RequestStatus

if TYPE_CHECKING:
    from core_engine.kv_cache.manager import CachedPrefix, GroupBlocks, KVCacheManager
    from core_engine.scheduler.limits import SchedulerLimits
    from core_engine.scheduler.roster import Roster
    from core_engine.scheduler.step_budget import StepBudget

__all__ = ["Admission", "Admitted"]


@dataclass(slots=True)
class Admitted:
    """Who came in; entry ``i`` of each list belongs to one request."""

    requests: list[RequestState] = field(default_factory=list)
    #: Tokens to compute in this step.
    granted: list[int] = field(default_factory=list)
    #: The whole block table.
    blocks: list[GroupBlocks] = field(default_factory=list)
    #: Those of ``requests`` that the runner does not know, and those it does.
    new: list[RequestState] = field(default_factory=list)
    resumed: list[RequestState] = field(default_factory=list)


class Admission:
    """Lets waiting requests in, strictly in order, but past those that wait for something of their own.

    A long prompt waits for its share of the budget, a LoRA adapter for a seat (`AdapterSeats`).
    """

    def __init__(
        self, roster: Roster, kv: KVCacheManager, limits: SchedulerLimits, *, max_loras: int = 0
    ) -> None:
        self._roster = roster
        self._kv = kv
        self._limits = limits
        self._max_loras = max_loras
        #: Prompt tokens looked up in the prefix cache, and those found.
        self.num_cache_queries = 0
        self.num_cache_hits = 0

    def admit(self, budget: StepBudget) -> Admitted:
        """Admit as many as the budget, the slots and the pool allow."""
        roster, kv = self._roster, self._kv
        admitted = Admitted()
        promised = self.num_promised_blocks()
        seats = self._adapter_seats()
        index = 0
        while index < len(roster.waiting) and budget.left and self._has_room():
            request = roster.waiting[index]
            if request.slot >= 0:
                break  # preempted, and its last steps are still in flight
            if seats is not None and not seats.admits(request):
                index += 1
                continue
            cached = self._find_cached_prefix(request)
            num_tokens, num_cached = len(request.tokens), len(cached) * kv.block_size
            num_needed = promised + kv.num_blocks_to_come(num_tokens, len(cached), cached.num_null)
            granted = budget.take(
                num_tokens - num_cached, partial(self._short_demand, num_seats=1, num_blocks=num_needed)
            )
            if granted == 0 and self._limits.chunked_prefill:
                index += 1  # a long prompt waits for its share; shorter ones behind it need not
                continue
            # The rest of a prompt keeps its place, so that prompts in progress never evict each other.
            num_entries = -(-(num_cached + granted) // kv.block_size)
            num_rest = kv.num_blocks_to_come(num_tokens, num_entries, cached.num_null)
            blocks = granted and kv.allocate(
                request.blocks, num_cached + granted, cached=cached, keep_free=promised + num_rest
            )
            if not blocks:
                break
            promised += num_rest
            if seats is not None:
                seats.seat(request)
            if request.status is RequestStatus.PREEMPTED:
                admitted.resumed.append(request)
            else:
                admitted.new.append(request)
                self._count_cached(request, num_cached)
            roster.run(request, num_cached)
            admitted.requests.append(request)
            admitted.granted.append(granted)
            admitted.blocks.append(blocks)
        return admitted

    def short_demand(self, most: int) -> int:
        """How many tokens, up to ``most``, waiting prompts want that one step could compute."""
        return self._short_demand(most, num_seats=0, num_blocks=self.num_promised_blocks())

    def _short_demand(self, most: int, *, num_seats: int, num_blocks: int) -> int:
        """The same when that many seats and blocks are given away before."""
        num_seats = self._limits.max_num_running - len(self._roster.running) - num_seats
        num_blocks = self._kv.pool.num_free - num_blocks
        demand = 0
        seats = self._adapter_seats()
        for request in self._roster.waiting:
            num_tokens = len(request.tokens)
            if demand >= most or num_seats <= 0:
                break
            if num_tokens > self._limits.max_num_batched_tokens:
                continue
            if seats is not None:
                if not seats.admits(request):
                    continue
                seats.seat(request)
            num_blocks -= self._kv.num_blocks_for(num_tokens)
            if num_blocks < 0:
                break
            num_seats -= 1
            demand += num_tokens
        return min(demand, most)

    def _adapter_seats(self) -> AdapterSeats | None:
        return AdapterSeats(self._max_loras, self._roster.running) if self._max_loras else None

    def _has_room(self) -> bool:
        roster = self._roster
        return roster.columns.num_free > 0 and len(roster.running) < self._limits.max_num_running

    def _reads_cache(self, request: RequestState) -> bool:
        return self._limits.prefix_caching and not request.wants_prompt_logprobs

    def _find_cached_prefix(self, request: RequestState) -> CachedPrefix:
        if not self._reads_cache(request):
            return self._kv.no_prefix()
        # The last token is computed in any case: its logits are what is sampled from.
        return self._kv.find_cached_prefix(request.blocks, request.tokens, len(request.tokens) - 1)

    def _count_cached(self, request: RequestState, num_cached: int) -> None:
        if self._reads_cache(request):
            request.num_cached_tokens = num_cached
            self.num_cache_queries += request.num_prompt_tokens
            self.num_cache_hits += num_cached

    def num_promised_blocks(self) -> int:
        """How many blocks the running requests still need for the tokens that they have."""
        columns, running = self._roster.columns, self._roster.running_set
        num_tokens = columns.num_tokens[running.slots]
        total = 0
        for row in (num_tokens > columns.capacity[running.slots]).nonzero()[0].tolist():
            blocks = running.requests[row].blocks
            total += self._kv.num_blocks_to_come(int(num_tokens[row]), len(blocks), blocks.num_null)
        return total
