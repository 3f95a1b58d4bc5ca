"""SimpleScheduler: whole prompts or decodes, for devices that can do no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core_engine.scheduler.admission import Admitted
from core_engine.scheduler.base import QueueScheduler
from core_engine.scheduler.step_budget import StepBudget
from core_engine.scheduler.step_rows import StepRows

if TYPE_CHECKING:
    from core_engine.config import EngineConfig
    from core_engine.kv_cache.manager import KVCacheManager
    from core_engine.plugin._capabilities import Capabilities

__all__ = ["MAX_PREFILLS_IN_A_ROW", "SimpleScheduler"]

#: After so many prefill steps the requests that run get a decode step.
MAX_PREFILLS_IN_A_ROW = 2


class SimpleScheduler(QueueScheduler):
    """Every step is a prefill of whole prompts or a decode of one token for each running request.

    It asks nothing of the runner: no mixed steps, no chunks, no cached prefixes, no drafts. Waiting
    prompts come first, as many as the budget (counted in padded tokens) and the pool hold, in order;
    a preempted request comes back as one longer prompt. After `MAX_PREFILLS_IN_A_ROW` prefills a
    decode follows if anything runs, so that nobody starves: a decode waits for at most that many
    steps, and a prompt for at most one step and its place in the pool.

    When a decode finds the pool dry, the policy's victim loses its blocks and waits again.
    """

    requires = ()
    offers = ("lora",)

    def __init__(self, config: EngineConfig, kv: KVCacheManager, capabilities: Capabilities) -> None:
        super().__init__(config, kv, capabilities)
        self._prefills_in_a_row = 0

    def plan_step(self) -> tuple[StepRows, Admitted]:
        """Prefill while it is prefill's turn and a prompt fits, else decode, else prefill after all."""
        prefill_first = self._prefills_in_a_row < MAX_PREFILLS_IN_A_ROW
        if prefill_first:
            rows, admitted = self._prefill()
            if rows.requests:
                self._prefills_in_a_row += 1
                return rows, admitted
        rows = self.decode_rows()
        if rows.requests:
            self._prefills_in_a_row = 0
        if rows.requests or prefill_first:
            return rows, Admitted()
        # Nothing that runs can go on before results of earlier steps are known.
        return self._prefill()

    def _prefill(self) -> tuple[StepRows, Admitted]:
        rows = StepRows.none()
        return rows, self.admit(rows, StepBudget(self.limits.max_num_batched_tokens, chunked=False))
