"""UnifiedScheduler: one token budget per step and no phases."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from core_engine._ragged import IntArray
from core_engine.engine.messages import CoreOutput
from core_engine.errors import ContractError, InvalidRequest
from core_engine.scheduler.admission import Admission, Admitted
from core_engine.scheduler.contract import Scheduler, SchedulerStats
from core_engine.scheduler.limits import SchedulerLimits
from core_engine.scheduler.output import NewRequest, SchedulerOutput
from core_engine.scheduler.policies import find_policy
from core_engine.scheduler.request import RequestState, RequestStatus, check_prompt
from core_engine.scheduler.results import take_results
from core_engine.scheduler.roster import BoolArray, Roster
from core_engine.scheduler.step_budget import StepBudget
from core_engine.scheduler.step_in_flight import StepInFlight
from core_engine.scheduler.step_rows import StepRows

if TYPE_CHECKING:
    from core_engine.config import EngineConfig
    from core_engine.engine.messages import CoreRequest
    from core_engine.kv_cache.manager import KVCacheManager
    from core_engine.plugin._capabilities import Capabilities
    from core_engine.worker.output import ModelRunnerOutput

__all__ = ["UnifiedScheduler"]


class UnifiedScheduler(Scheduler):
    """Every step moves each request's computed tokens toward the tokens it has.

    Decode, chunked prefill, prefix-cache hits and resuming after preemption are one code path: a
    request wants ``num_tokens - num_computed`` tokens and gets what the step's budget and the pool
    allow. Where it catches up, it samples.

    When the pool runs dry the last request in order loses its blocks and waits again; it is computed
    anew later, from its own cached blocks as far as they are still there. The first in order never
    loses anything to others, so there is always progress.

    Results may lag: ``schedule`` counts tokens as computed and sampled at once, ``update`` learns the
    ids later. What a request gives up (its slot, its blocks) is free again when the last step that
    used it has been updated.
    """

    def __init__(self, config: EngineConfig, kv: KVCacheManager, capabilities: Capabilities) -> None:
        self._kv = kv
        self._limits = limits = SchedulerLimits.settle(config, capabilities, kv.config.max_model_len)
        self._policy = find_policy(config.scheduling_policy)
        self._roster = Roster(
            kv, max_num_running=limits.max_num_running, prefix_caching=limits.prefix_caching
        )
        self._columns = self._roster.columns
        self._admission = Admission(self._roster, kv, limits)
        self._in_flight: deque[StepInFlight] = deque()
        self._num_added = 0
        self._num_steps = 0

    def add(self, request: CoreRequest) -> None:
        """Queue a request; see `Scheduler.add`."""
        config = self._kv.config
        if request.request_id in self._roster.requests:
            raise InvalidRequest(f"request id {request.request_id!r} is in use; choose another", "request_id")
        check_prompt(request, config)
        state = RequestState(
            request,
            self._policy(request, self._num_added),
            self._kv.new_table(),
            max_model_len=config.max_model_len,
            pool_tokens=config.num_tokens,
        )
        self._num_added += 1
        self._roster.enter(state)

    def finish(self, request_ids: Iterable[str], reason: str) -> list[CoreOutput]:
        """End requests from outside; see `Scheduler.finish`."""
        outputs = []
        for request_id in request_ids:
            request = self._roster.requests.get(request_id)
            if request is not None:
                self._roster.end(request)
                outputs.append(
                    CoreOutput(
                        request_id=request_id,
                        finish_reason=reason,
                        num_cached_tokens=request.num_cached_tokens,
                    )
                )
        return outputs

    def has_work(self) -> bool:
        """Say whether a request is unfinished or the runner has to be told of an end."""
        return bool(self._roster.requests) or self._roster.has_news

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; see `KVCacheManager.reset_prefix_cache`."""
        return self._kv.reset_prefix_cache()

    def stats(self) -> SchedulerStats:
        """Return a snapshot of the queues and the pool."""
        return SchedulerStats(
            num_running=len(self._roster.running),
            num_waiting=len(self._roster.waiting),
            num_free_blocks=self._kv.pool.num_free,
            num_total_blocks=self._kv.pool.num_usable,
            num_preemptions=self._roster.num_preemptions,
            prefix_cache_queries=self._admission.num_cache_queries,
            prefix_cache_hits=self._admission.num_cache_hits,
        )

    def schedule(self) -> SchedulerOutput | None:
        """Build the next step, or return None when there is nothing to compute and nothing to tell."""
        roster = self._roster
        budget = StepBudget(self._limits.max_num_batched_tokens, chunked=self._limits.chunked_prefill)
        rows = self._schedule_running(budget)
        admitted = Admitted()
        # After a preemption the pool is dry: whoever came in now would be the next to lose its blocks.
        if len(roster.waiting) and budget.left and not roster.has_preempted:
            admitted = self._admission.admit(budget)
            if admitted.requests:
                rows.append(admitted.requests, admitted.granted, admitted.blocks)
        if not rows.requests and not roster.has_news:
            return None
        return self._send(rows, admitted)

    def _schedule_running(self, budget: StepBudget) -> StepRows:
        running = self._roster.running_set
        computed, tokens, max_computed, capacity = self._columns.take_running(running.slots)
        wanted = np.minimum(tokens, max_computed) - computed
        granted = budget.divide(wanted, self._admission.short_demand)
        rows = StepRows(running.requests, running.request_ids, running.slots, granted, {})
        ends = computed + rows.granted
        short = (ends > capacity).nonzero()[0].tolist()
        if short:
            self._grow(rows, short, ends)
        rows.drop_idle()
        return rows

    def _grow(self, rows: StepRows, short: list[int], ends: IntArray) -> None:
        """Give blocks to the rows that are short of them, in order, at the cost of the last in order."""
        num_kept = len(rows.requests)
        for row in short:
            while row < num_kept and not self._take_blocks(rows, row, int(ends[row])):
                if self._roster.num_draining_blocks:
                    rows.granted[row] = 0  # blocks come back with the steps in flight
                    break
                num_kept -= 1
                rows.granted[num_kept] = 0
                self._roster.preempt(rows.requests[num_kept])
            if row >= num_kept:
                break

    def _take_blocks(self, rows: StepRows, row: int, num_tokens: int) -> bool:
        request = rows.requests[row]
        blocks = self._kv.allocate(request.blocks, num_tokens)
        if blocks is None:
            return False
        rows.new_blocks[row] = blocks
        self._columns.capacity[request.slot] += len(blocks) * self._kv.block_size
        return True

    def _send(self, rows: StepRows, admitted: Admitted) -> SchedulerOutput:
        """Count the step's tokens as computed and sampled, and write the message."""
        columns, slots = self._columns, rows.slots
        computed = columns.num_computed[slots]
        ends = computed + rows.granted
        samples = ends == columns.num_tokens[slots]
        columns.num_computed[slots] = ends
        columns.num_tokens[slots] += samples
        columns.num_in_flight[slots] += 1
        record = StepInFlight.of(self._num_steps, rows, columns.epoch[slots], ends, samples)
        self._in_flight.append(record)
        self._num_steps += 1
        preempted, finished = self._roster.take_news()
        return SchedulerOutput(
            step_id=record.step_id,
            request_ids=rows.request_ids,
            num_scheduled_tokens=rows.granted,
            num_computed_tokens=computed,
            new_block_ids=(rows.block_rows(),),
            new_requests=tuple([_new_request(request) for request in admitted.new]),
            resumed_request_ids=tuple([request.request_id for request in admitted.resumed]),
            preempted_request_ids=preempted,
            finished_request_ids=finished,
        )

    def update(self, step: SchedulerOutput, output: ModelRunnerOutput) -> list[CoreOutput]:
        """Take a step's results; see `Scheduler.update`.

        Raises `ContractError` when the rows are not those of the step.
        """
        failed = self._end_failed_steps(step.step_id)
        if not self._in_flight or self._in_flight[0].step_id != step.step_id:
            raise ContractError(f"step {step.step_id} is updated, but it is not in flight")
        record = self._in_flight[0]
        record.check(output)
        self._in_flight.popleft()
        self._columns.num_in_flight[record.slots] -= 1
        outputs, ended = take_results(record, output, self._columns)
        stale = self._columns.epoch[record.slots] != record.epochs
        self._commit_full_blocks(record, stale)
        self._roster.release_drained(record, stale)
        for request in ended:
            self._roster.end(request)
        return failed + outputs

    def _commit_full_blocks(self, record: StepInFlight, stale: BoolArray) -> None:
        """Let others find the blocks that this step filled."""
        columns, block_size = self._columns, self._kv.block_size
        full = record.ends >= columns.commit_at[record.slots]
        for row in (full & ~stale).nonzero()[0].tolist():
            request = record.requests[row]
            num_known = min(int(record.ends[row]), len(request.tokens))
            self._kv.commit(request.blocks, request.tokens, num_known)
            columns.commit_at[request.slot] = (num_known // block_size + 1) * block_size

    def _end_failed_steps(self, step_id: int) -> list[CoreOutput]:
        """End what the steps before ``step_id`` held: their updates never came, so they failed."""
        outputs: list[CoreOutput] = []
        while self._in_flight and self._in_flight[0].step_id < step_id:
            record = self._in_flight.popleft()
            self._columns.num_in_flight[record.slots] -= 1
            self._roster.release_drained(record, self._columns.epoch[record.slots] != record.epochs)
            alive = [r.request_id for r in record.requests if r.status is not RequestStatus.FINISHED]
            outputs += self.finish(alive, "error")
        return outputs


def _new_request(state: RequestState) -> NewRequest:
    request = state.request
    return NewRequest(
        request_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        sampling_params=request.params,
        seed=request.seed,
        stream=request.stream,
        eos_token_ids=request.eos_token_ids,
        bad_words_token_ids=request.bad_words_token_ids,
    )
