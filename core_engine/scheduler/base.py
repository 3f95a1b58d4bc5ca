"""QueueScheduler: everything about a scheduler but the choice of what one step computes."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from core_engine._ragged import IntArray
from core_engine.engine.messages import CoreOutput
from core_engine.errors import ContractError, InvalidRequest
from core_engine.scheduler.admission import Admission, Admitted
from core_engine.scheduler.contract import Scheduler, SchedulerStats
from core_engine.scheduler.drafts import Drafts
from core_engine.scheduler.growth import grow_rows
from core_engine.scheduler.limits import SchedulerLimits
from core_engine.scheduler.output import NewRequest, SchedulerOutput
from core_engine.scheduler.plugins import load_policy
from core_engine.scheduler.policies import order_of
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

__all__ = ["QueueScheduler"]


class QueueScheduler(Scheduler):
    """Keeps queues, blocks and steps in flight; a subclass says in ``plan_step`` what is computed.

    Results may lag: ``schedule`` counts tokens as computed and sampled at once, ``update`` learns the
    ids later. What a request gives up (its slot, its blocks) is free again when the last step that
    used it has been updated.
    """

    def __init__(self, config: EngineConfig, kv: KVCacheManager, capabilities: Capabilities) -> None:
        self.kv = kv
        self.limits = limits = self.settle_limits(config, capabilities, kv.config.max_model_len)
        self.policy = load_policy(config.scheduling_policy)
        self.roster = Roster(kv, max_num_running=limits.max_num_running, prefix_caching=limits.prefix_caching)
        self.columns = self.roster.columns
        self.admission = Admission(self.roster, kv, limits, max_loras=config.max_loras)
        self.drafts = Drafts(self, limits.num_draft_tokens) if limits.num_draft_tokens else None
        self._in_flight: deque[StepInFlight] = deque()
        self._num_added = 0
        self._num_steps = 0

    @classmethod
    def settle_limits(
        cls, config: EngineConfig, capabilities: Capabilities, max_model_len: int
    ) -> SchedulerLimits:
        """Settle what one step may hold; see `SchedulerLimits.settle`."""
        return SchedulerLimits.settle(config, capabilities, max_model_len, cls)

    @abstractmethod
    def plan_step(self) -> tuple[StepRows, Admitted]:
        """Choose the rows of the next step, give them blocks, and say which of them came in with it."""

    def add(self, request: CoreRequest) -> None:
        """Queue a request; see `Scheduler.add`."""
        config = self.kv.config
        if request.request_id in self.roster.requests:
            raise InvalidRequest(f"request id {request.request_id!r} is in use; choose another", "request_id")
        check_prompt(request, config.max_model_len, self.kv.num_tokens)
        state = RequestState(
            request,
            order_of(self.policy, request, self._num_added),
            self.kv.new_table(request.extra_keys),
            max_model_len=config.max_model_len,
            pool_tokens=self.kv.num_tokens,
        )
        if self.drafts is not None:
            state.drafter = self.drafts.new_drafter(state)
        self._num_added += 1
        self.roster.enter(state)

    def finish(self, request_ids: Iterable[str], reason: str) -> list[CoreOutput]:
        """End requests from outside; see `Scheduler.finish`."""
        outputs = []
        for request_id in request_ids:
            request = self.roster.requests.get(request_id)
            if request is not None:
                if reason == "error":
                    self.kv.forget(request.blocks)
                self.roster.end(request)
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
        return bool(self.roster.requests) or self.roster.has_news

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; see `KVCacheManager.reset_prefix_cache`."""
        return self.kv.reset_prefix_cache()

    def stats(self) -> SchedulerStats:
        """Return a snapshot of the queues and the pool."""
        return SchedulerStats(
            num_running=len(self.roster.running),
            num_waiting=len(self.roster.waiting),
            num_free_blocks=self.kv.pool.num_free,
            num_total_blocks=self.kv.pool.num_usable,
            num_preemptions=self.roster.num_preemptions,
            prefix_cache_queries=self.admission.num_cache_queries,
            prefix_cache_hits=self.admission.num_cache_hits,
            num_draft_tokens=self.drafts.num_drafts if self.drafts else 0,
            num_accepted_tokens=self.drafts.num_accepted if self.drafts else 0,
        )

    def schedule(self) -> SchedulerOutput | None:
        """Build the next step, or return None when there is nothing to compute and nothing to tell."""
        rows, admitted = self.plan_step()
        if not rows.requests and not self.roster.has_news:
            return None
        return self._send(rows, admitted)

    def take_blocks(self, rows: StepRows, row: int, num_tokens: int, *, keep_free: int = 0) -> bool:
        """Extend the blocks of ``row`` to ``num_tokens``.

        Returns False when fewer than ``keep_free`` blocks would be left in the pool.
        """
        request = rows.requests[row]
        blocks = self.kv.allocate(request.blocks, num_tokens, keep_free=keep_free)
        if blocks is None:
            return False
        gained = rows.new_blocks.get(row)
        if gained is not None:
            rows.new_blocks[row] = [old + new for old, new in zip(gained, blocks, strict=True)]
        else:
            rows.new_blocks[row] = blocks
        self.columns.capacity[request.slot] += len(blocks[0]) * self.kv.block_size
        return True

    def decode_rows(self) -> StepRows:
        """Return one token for each running request that can go on, with the blocks that it takes.

        Where the pool is dry the policy's victims lose their blocks.
        """
        running = self.roster.running_set
        computed, tokens, max_computed, capacity = self.columns.take_running(running.slots)
        granted = (np.minimum(tokens, max_computed) > computed).astype(np.int32)
        rows = StepRows(running.requests, running.request_ids, running.slots, granted, {})
        self.grow(rows, computed + granted, capacity)
        rows.drop_idle()
        return rows

    def admit(self, rows: StepRows, budget: StepBudget) -> Admitted:
        """Let waiting requests in, as ``budget`` and the pool allow, and append them to ``rows``.

        After a preemption the pool is dry, and nobody comes in: they would be the next to lose their
        blocks.
        """
        if not len(self.roster.waiting) or not budget.left or self.roster.has_preempted:
            return Admitted()
        admitted = self.admission.admit(budget)
        if admitted.requests:
            rows.append(admitted.requests, admitted.granted, admitted.blocks)
        return admitted

    def grow(self, rows: StepRows, ends: IntArray, capacity: IntArray) -> None:
        """Give each row blocks for ``ends[row]`` tokens where it holds fewer, ``capacity[row]``.

        Where the pool is dry others are preempted, or the row sits this step out: `drop_idle` follows.
        """
        short = (ends > capacity).nonzero()[0].tolist()
        if short:
            grow_rows(rows, short, ends, take_blocks=self.take_blocks, roster=self.roster, policy=self.policy)

    def _send(self, rows: StepRows, admitted: Admitted) -> SchedulerOutput:
        """Count the step's tokens as computed and sampled, and write the message."""
        columns, slots = self.columns, rows.slots
        computed = columns.num_computed[slots]
        ends = computed + rows.granted
        samples = ends >= columns.num_tokens[slots]
        columns.num_computed[slots] = ends
        columns.num_tokens[slots] += samples
        columns.num_in_flight[slots] += 1
        record = StepInFlight.of(self._num_steps, rows, columns.epoch[slots], ends, samples)
        drafts = rows.draft_rows()
        if drafts is not None:
            record.num_drafts = np.diff(drafts.offsets)
            columns.num_tokens[slots] = np.maximum(columns.num_tokens[slots], ends)
        self._in_flight.append(record)
        self._num_steps += 1
        preempted, finished = self.roster.take_news()
        return SchedulerOutput(
            step_id=record.step_id,
            request_ids=rows.request_ids,
            num_scheduled_tokens=rows.granted,
            num_computed_tokens=computed,
            new_block_ids=rows.block_rows(len(self.kv.kinds)),
            new_requests=tuple([_new_request(request) for request in admitted.new]),
            resumed_request_ids=tuple([request.request_id for request in admitted.resumed]),
            preempted_request_ids=preempted,
            finished_request_ids=finished,
            draft_token_ids=drafts,
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
        self.columns.num_in_flight[record.slots] -= 1
        if self.drafts is not None:
            self.drafts.settle(record, output)
        outputs, ended = take_results(record, output, self.columns)
        for request, stop in ended:
            if stop.finish_reason == "error":
                self.kv.forget(request.blocks)
        stale = self.columns.epoch[record.slots] != record.epochs
        self._commit_full_blocks(record, stale)
        if self.kv.frees_early:
            self._free_behind_windows(record, stale)
        self.roster.release_drained(record, stale)
        for request, _ in ended:
            self.roster.end(request)
        return failed + outputs

    def _commit_full_blocks(self, record: StepInFlight, stale: BoolArray) -> None:
        """Let others find the blocks that this step filled."""
        columns, block_size = self.columns, self.kv.block_size
        full = record.ends >= columns.commit_at[record.slots]
        for row in (full & ~stale).nonzero()[0].tolist():
            request = record.requests[row]
            num_known = min(int(record.ends[row]), len(request.tokens))
            self.kv.commit(request.blocks, request.tokens, num_known)
            columns.commit_at[request.slot] = (num_known // block_size + 1) * block_size

    def _free_behind_windows(self, record: StepInFlight, stale: BoolArray) -> None:
        """Give back what no token reads any more once this step's results are known."""
        columns = self.columns
        due = record.ends >= columns.free_at[record.slots]
        for row in (due & ~stale).nonzero()[0].tolist():
            request = record.requests[row]
            columns.free_at[request.slot] = self.kv.free_behind(request.blocks, int(record.ends[row]))

    def abandon(self, step: SchedulerOutput) -> list[CoreOutput]:
        """Take back a step that failed; see `Scheduler.abandon`."""
        outputs: list[CoreOutput] = []
        for record in [record for record in self._in_flight if record.step_id == step.step_id]:
            self._in_flight.remove(record)
            outputs = self._end_failed(record)
        return outputs + self.finish(step.request_ids, "error")

    def _end_failed_steps(self, step_id: int) -> list[CoreOutput]:
        """End what the steps before ``step_id`` held: their updates never came, so they failed."""
        outputs: list[CoreOutput] = []
        while self._in_flight and self._in_flight[0].step_id < step_id:
            outputs += self._end_failed(self._in_flight.popleft())
        return outputs

    def _end_failed(self, record: StepInFlight) -> list[CoreOutput]:
        self.columns.num_in_flight[record.slots] -= 1
        self.roster.release_drained(record, self.columns.epoch[record.slots] != record.epochs)
        alive = [r.request_id for r in record.requests if r.status is not RequestStatus.FINISHED]
        return self.finish(alive, "error")


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
        lora_id=request.lora_id,
    )
