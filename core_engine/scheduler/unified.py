"""UnifiedScheduler: one token budget per step and no phases."""

from __future__ import annotations

import numpy as np

from core_engine.scheduler.admission import Admitted
from core_engine.scheduler.base import QueueScheduler
from core_engine.scheduler.step_budget import StepBudget
from core_engine.scheduler.step_rows import StepRows

__all__ = ["UnifiedScheduler"]


class UnifiedScheduler(QueueScheduler):
    """Every step moves each request's computed tokens toward the tokens it has.

    Decode, chunked prefill, prefix-cache hits and resuming after preemption are one code path: a
    request wants ``num_tokens - num_computed`` tokens and gets what the step's budget and the pool
    allow. Where it catches up, it samples.

    When the pool runs dry the policy's victim, the last request in order unless it says otherwise, loses
    its blocks and waits again; it is computed anew later, from its own cached blocks as far as they are
    still there. The first in order never loses anything to others, so there is always progress.
    """

    requires = ("mixed_batches",)
    offers = ("chunked_prefill", "prefix_caching", "draft_tokens", "lora")

    def plan_step(self) -> tuple[StepRows, Admitted]:
        """Serve the running requests, then admit as many as fit."""
        budget = StepBudget(self.limits.max_num_batched_tokens, chunked=self.limits.chunked_prefill)
        rows = self._schedule_running(budget)
        admitted = self.admit(rows, budget)
        if self.drafts is not None:
            self.drafts.fill(rows, budget.left)
        return rows, admitted

    def _schedule_running(self, budget: StepBudget) -> StepRows:
        running = self.roster.running_set
        computed, tokens, max_computed, capacity = self.columns.take_running(running.slots)
        wanted = np.minimum(tokens, max_computed) - computed
        granted = budget.divide(wanted, self.admission.short_demand)
        rows = StepRows(running.requests, running.request_ids, running.slots, granted, {})
        self.grow(rows, computed + rows.granted, capacity)
        rows.drop_idle()
        return rows
