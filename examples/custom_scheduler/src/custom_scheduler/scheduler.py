"""A scheduler: one request at a time, from its first token to its last."""

from __future__ import annotations

from dataclasses import replace

from core_engine.plugin import Capabilities, EngineConfig
from core_engine.plugin.scheduling import (
    Admitted,
    QueueScheduler,
    SchedulerLimits,
    StepBudget,
    StepRows,
)

#: The plugin API that this module was written for.
CORE_ENGINE_API = "0.1"


class OneAtATime(QueueScheduler):
    """Serves every request as if it were alone: the least time from first to last token, no throughput."""

    #: Nothing that a backend could lack.
    requires = ()
    #: What it makes use of where the backend has it.
    offers = ("prefix_caching", "lora")

    @classmethod
    def settle_limits(
        cls, config: EngineConfig, capabilities: Capabilities, max_model_len: int
    ) -> SchedulerLimits:
        """Allow one running request."""
        return replace(super().settle_limits(config, capabilities, max_model_len), max_num_running=1)

    def plan_step(self) -> tuple[StepRows, Admitted]:
        """Decode the request that runs; when there is none, compute the next prompt whole."""
        rows = self.decode_rows()
        if len(self.roster.running):
            return rows, Admitted()
        budget = StepBudget(self.limits.max_num_batched_tokens, chunked=False)
        return rows, self.admit(rows, budget)
