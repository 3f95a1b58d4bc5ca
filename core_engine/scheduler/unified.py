"""UnifiedScheduler: one token budget per step and no phases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from core_engine._ragged import IntArray
from core_engine.scheduler.admission import Admitted
from core_engine.scheduler.base import QueueScheduler
from core_engine.scheduler.limits import SchedulerLimits
from core_engine.scheduler.step_budget import StepBudget
from core_engine.scheduler.step_rows import StepRows

if TYPE_CHECKING:
    from core_engine.config import EngineConfig
    from core_engine.plugin._capabilities import Capabilities

__all__ = ["UnifiedScheduler"]


class UnifiedScheduler(QueueScheduler):
    """Every step moves each request's computed tokens toward the tokens it has.

    Decode, chunked prefill, prefix-cache hits and resuming after preemption are one code path: a
    request wants ``num_tokens - num_computed`` tokens and gets what the step's budget and the pool
    allow. Where it catches up, it samples.

    When the pool runs dry the last request in order loses its blocks and waits again; it is computed
    anew later, from its own cached blocks as far as they are still there. The first in order never
    loses anything to others, so there is always progress.
    """

    requires = ("mixed_batches",)
    offers = ("chunked_prefill", "prefix_caching", "draft_tokens", "lora")

    @classmethod
    def settle_limits(
        cls, config: EngineConfig, capabilities: Capabilities, max_model_len: int
    ) -> SchedulerLimits:
        """Settle the limits; see `SchedulerLimits.settle`."""
        return SchedulerLimits.settle(config, capabilities, max_model_len)

    def plan_step(self) -> tuple[StepRows, Admitted]:
        """Serve the running requests, then admit as many as fit."""
        roster = self.roster
        budget = StepBudget(self.limits.max_num_batched_tokens, chunked=self.limits.chunked_prefill)
        rows = self._schedule_running(budget)
        admitted = Admitted()
        # After a preemption the pool is dry: whoever came in now would be the next to lose its blocks.
        if len(roster.waiting) and budget.left and not roster.has_preempted:
            admitted = self.admission.admit(budget)
            if admitted.requests:
                rows.append(admitted.requests, admitted.granted, admitted.blocks)
        return rows, admitted

    def _schedule_running(self, budget: StepBudget) -> StepRows:
        running = self.roster.running_set
        computed, tokens, max_computed, capacity = self.columns.take_running(running.slots)
        wanted = np.minimum(tokens, max_computed) - computed
        granted = budget.divide(wanted, self.admission.short_demand)
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
            while row < num_kept and not self.take_blocks(rows, row, int(ends[row])):
                if self.roster.num_draining_blocks:
                    rows.granted[row] = 0  # blocks come back with the steps in flight
                    break
                num_kept -= 1
                rows.granted[num_kept] = 0
                self.roster.preempt(rows.requests[num_kept])
            if row >= num_kept:
                break
