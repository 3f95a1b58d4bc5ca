"""Drafts: adds guessed tokens to a step where there is room, and takes back what was not accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from core_engine.errors import ContractError
from core_engine.scheduler.drafter import Drafter, can_draft

if TYPE_CHECKING:
    from core_engine.scheduler.base import QueueScheduler
    from core_engine.scheduler.request import RequestState
    from core_engine.scheduler.step_in_flight import StepInFlight
    from core_engine.scheduler.step_rows import StepRows
    from core_engine.worker.output import ModelRunnerOutput

__all__ = ["MAX_DRAFT_TOKENS", "Drafts"]

#: The most drafts of one request in one step.
MAX_DRAFT_TOKENS = 31


class Drafts:
    """The speculative side of a scheduler.

    A draft takes one row of the sampler, one token of the budget and a place in the cache, all from what
    the step would leave unused: it never displaces a request.

    While a step with drafts is in flight nobody knows how many tokens it will bring, so its requests are
    counted as if every draft were accepted and wanted nothing more; `settle` corrects that.
    """

    def __init__(self, scheduler: QueueScheduler, longest: int) -> None:
        self._scheduler = scheduler
        self._longest = longest
        self.num_drafts = 0
        self.num_accepted = 0

    def new_drafter(self, request: RequestState) -> Drafter | None:
        """Return what guesses for ``request``; None where its parameters rule drafts out."""
        return Drafter(request.tokens, self._longest) if can_draft(request.request.params) else None

    def fill(self, rows: StepRows, num_tokens_left: int) -> None:
        """Give drafts to rows that decode and have no step in flight, first come, first served."""
        scheduler = self._scheduler
        num_left = min(scheduler.limits.max_num_running - len(rows.requests), num_tokens_left)
        if num_left <= 0:
            return
        columns, slots = scheduler.columns, rows.slots
        num_computed = columns.num_computed[slots]
        decodes = (num_computed + 1 == columns.num_tokens[slots]) & (columns.num_in_flight[slots] == 0)
        for row in (decodes & (rows.granted == 1)).nonzero()[0].tolist():
            request = rows.requests[row]
            num_known = len(request.tokens)
            if request.drafter is None or num_known < request.min_total_tokens:
                continue
            # The token after the last accepted draft is sampled too and must not be one too many.
            drafts = request.drafter.propose(min(num_left, request.max_total_tokens - 1 - num_known))
            if drafts:
                drafts = drafts[: self._room(rows, row, num_known + len(drafts)) - num_known]
            if drafts:
                rows.add_drafts(row, drafts)
                num_left -= len(drafts)
                if not num_left:
                    break

    def settle(self, record: StepInFlight, output: ModelRunnerOutput) -> None:
        """Take back the drafts of ``record`` that were not accepted.

        Raises `ContractError` when ``output`` has too many or too few tokens for them.
        """
        if record.num_drafts is None:
            return
        num_new = np.zeros(len(record.requests), dtype=np.int32)
        num_new[slice(None) if record.sampling is None else record.sampling] = np.diff(
            output.sampled_token_ids.offsets
        )
        rows = record.num_drafts.nonzero()[0]
        num_drafts, num_accepted = record.num_drafts[rows], num_new[rows] - 1
        if np.any((num_accepted < 0) | (num_accepted > num_drafts)):
            raise ContractError(
                f"step {record.step_id}: {num_new[rows].tolist()} tokens came back for "
                f"{num_drafts.tolist()} drafts; the most is one more than the drafts, the least is one"
            )
        columns, slots, num_rejected = self._scheduler.columns, record.slots[rows], num_drafts - num_accepted
        columns.num_computed[slots] -= num_rejected
        columns.num_tokens[slots] -= num_drafts - 1  # as if one token had been sampled, like everywhere
        record.ends[rows] -= num_rejected
        for row, drafted, accepted in zip(
            rows.tolist(), num_drafts.tolist(), num_accepted.tolist(), strict=True
        ):
            drafter = record.requests[row].drafter
            if drafter is not None:
                drafter.learn(drafted, accepted)
        self.num_drafts += int(num_drafts.sum())
        self.num_accepted += int(num_accepted.sum())

    def _room(self, rows: StepRows, row: int, num_tokens: int) -> int:
        """Return up to how many of ``num_tokens`` the blocks of ``row`` hold, after growing them if easy.

        A block is taken only if one is left for every running request and group, and for the rest of every
        prompt.
        """
        scheduler, slot = self._scheduler, int(rows.slots[row])
        if num_tokens > scheduler.columns.capacity[slot]:
            spared = scheduler.admission.num_promised_blocks()
            spared += len(scheduler.roster.running) * len(scheduler.kv.kinds)
            scheduler.take_blocks(rows, row, num_tokens, keep_free=spared)
        return min(num_tokens, int(scheduler.columns.capacity[slot]))
