"""StepChecker: the engine's check of every step that a scheduler builds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from core_engine._ragged import IntArray
from core_engine.errors import ContractError
from core_engine.scheduler.columns import Slots

if TYPE_CHECKING:
    from collections.abc import Iterable

    from core_engine._ragged import Ragged
    from core_engine.kv_cache.specs import KVCacheConfig
    from core_engine.scheduler.output import SchedulerOutput

__all__ = ["StepChecker"]

_INT32 = np.dtype(np.int32)


class StepChecker:
    """Raises `ContractError` for a step that no runner could compute correctly.

    * Uniqueness: a request stands in a step once, and is new, resumed or known as the step says.
    * Budget: tokens and requests stay within the limits.
    * Capacity: blocks come from the pool and hold the request's tokens; the null block stands only
      where a new or resumed request's group needs nothing any more.
    * Length: a request goes on where its last step ended, or at a draft of it, by at least one token,
      at most to max_model_len and to the end of what it has: its prompt, sampled tokens and drafts.

    Whether two requests write to one block takes whole block tables: `core_engine.testing` finds that.

    Rows are looked up only when the step's tuple of ids is another object or requests come and go, so
    that a decode step costs a few array operations whatever its size.
    """

    def __init__(self, kv: KVCacheConfig, *, max_num_batched_tokens: int, max_num_seqs: int) -> None:
        self._kv = kv
        self._kinds = kv.kinds
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_num_seqs = max_num_seqs
        #: By row: tokens computed; -1 before the first step, which may begin behind any cached prefix.
        self._ends: IntArray = np.zeros(max_num_seqs, dtype=np.int32)
        #: By row: the most tokens that the request may have by now; drafts count as if accepted.
        self._num_known: IntArray = np.zeros(max_num_seqs, dtype=np.int32)
        #: By cache group and row.
        self._num_blocks: IntArray = np.zeros((len(kv.groups), max_num_seqs), dtype=np.int32)
        #: By row: the most tokens that its blocks and the context hold.
        self._room: IntArray = np.zeros(max_num_seqs, dtype=np.int32)
        #: By row: how many drafts the last step had; None as long as no step had any.
        self._num_drafts: IntArray | None = None
        self._row_of: dict[str, int] = {}
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        #: Preempted requests, each with its entry of ``_num_known``.
        self._preempted: dict[str, int] = {}
        self._excused: set[str] = set()
        #: The tuple of the last step while ``_step_rows`` are its rows.
        self._step_ids: tuple[str, ...] | None = None
        self._step_rows: Slots = np.zeros(0, dtype=np.intp)

    def check(self, step: SchedulerOutput) -> None:
        """Check ``step`` and remember it; steps come in order.

        After a `ContractError` call ``excuse`` before the next step.
        """
        try:
            has_entered = self._apply_news(step)
            self._check_columns(step)
            self._check_tokens(step, has_entered)
        except _Violation as violation:
            raise ContractError(f"the scheduler built a wrong step {step.step_id}: {violation}") from None
        except Exception as error:
            text = f"the scheduler built a step that cannot be read: {type(error).__name__}: {error}"
            raise ContractError(text) from error
        self._excused.clear()

    def excuse(self, request_ids: Iterable[str]) -> None:
        """Forget requests of a wrong step, which the engine ends; the next step may tell of their ends."""
        for name in request_ids:
            self._excused.add(name)
            self._preempted.pop(name, None)
            if name in self._row_of:
                self._drop(name, "excused")
        self._step_ids = None

    def _apply_news(self, step: SchedulerOutput) -> bool:
        """Follow who goes and who comes; returns whether anybody comes."""
        has_left = bool(step.finished_request_ids or step.preempted_request_ids)
        has_entered = bool(step.new_requests or step.resumed_request_ids)
        if not has_left and not has_entered:
            _require(bool(step.request_ids), "it computes nothing and tells nothing")
            return False
        self._step_ids = None
        for name in step.finished_request_ids:
            if name in self._preempted:
                del self._preempted[name]
            elif name not in self._excused:
                self._drop(name, "finished")
        for name in step.preempted_request_ids:
            self._preempted[name] = int(self._num_known[self._drop(name, "preempted")])
        for new in step.new_requests:
            name = new.request_id
            _require(name not in self._row_of and name not in self._preempted, f"{name!r} is new twice")
            self._enter(name, len(new.prompt_token_ids))
        for name in step.resumed_request_ids:
            _require(name in self._preempted, f"{name!r} is resumed, but it was not preempted")
            self._enter(name, self._preempted.pop(name))
        return has_entered

    def _check_columns(self, step: SchedulerOutput) -> None:
        ids, count = step.request_ids, len(step.request_ids)
        _require(len(step.new_block_ids) == len(self._kv.groups), "not one entry of blocks per cache group")
        for column in (step.num_scheduled_tokens, step.num_computed_tokens):
            if column.dtype != _INT32:  # the text of a data type takes longer than all the rest
                raise _Violation(f"a column of {column.dtype}, not int32")
            _require(len(column) == count, f"a column of {len(column)} rows for {count} requests")
        for blocks in step.new_block_ids:
            _require(len(blocks) == count, f"a column of {len(blocks)} rows for {count} requests")
            _require(blocks.offsets[-1] == len(blocks.values), "blocks that belong to no row")
        scheduled, budget = step.num_scheduled_tokens, self._max_num_batched_tokens
        # Where even the largest share for all stays within the budget nothing needs to be summed.
        if count and int(scheduled[scheduled.argmax()]) * count > budget:
            total = step.total_num_tokens
            _require(total <= budget, f"{total} tokens, max_num_batched_tokens is {budget}")
        if ids is not self._step_ids:
            _require(len(set(ids)) == count, "a request stands in it twice")
            unknown = [name for name in ids if name not in self._row_of]
            _require(not unknown, f"{unknown} neither new nor resumed nor running")
            self._step_rows = np.array([self._row_of[name] for name in ids], dtype=np.intp)
            self._step_ids = ids
        if step.draft_token_ids is not None:
            self._check_drafts(step, step.draft_token_ids)

    def _check_drafts(self, step: SchedulerOutput, drafts: Ragged) -> None:
        _require(len(drafts) == len(step.request_ids), f"{len(drafts)} rows of drafts")
        num_drafts = np.diff(drafts.offsets)
        wrong = (num_drafts > 0) & (step.num_scheduled_tokens != 1 + num_drafts)
        if np.count_nonzero(wrong):
            raise _Violation(f"{step.request_ids[int(np.argmax(wrong))]!r} drafts without decoding")
        num_rows = len(step.request_ids) + len(drafts.values)
        limit = self._max_num_seqs
        _require(num_rows <= limit, f"{num_rows} requests and drafts, max_num_seqs is {limit}")
        if self._num_drafts is None:
            self._num_drafts = np.zeros(limit, dtype=np.int32)

    def _check_tokens(self, step: SchedulerOutput, has_entered: bool) -> None:
        ids, rows, computed = step.request_ids, self._step_rows, step.num_computed_tokens
        last_ends, known = self._ends[rows], self._num_known[rows]
        if has_entered:
            entered = last_ends < 0
            num_entered = len(step.new_requests) + len(step.resumed_request_ids)
            _require(np.count_nonzero(entered) == num_entered, "a new or resumed request computes nothing")
            last_ends = np.where(entered, np.maximum(computed, 0), last_ends)
        if self._num_drafts is not None:
            # Of a step with drafts only the first ones may have counted.
            num_drafts = self._num_drafts[rows]
            last_ends = np.clip(computed, last_ends - num_drafts, last_ends)
            known = np.where(num_drafts > 0, np.minimum(known, computed + 1), known)
        for group, blocks in enumerate(step.new_block_ids):
            if len(blocks.values):
                self._add_blocks(group, rows, blocks, computed)
        drafts = None if step.draft_token_ids is None else np.diff(step.draft_token_ids.offsets)
        room = np.minimum(self._room[rows], known if drafts is None else known + drafts)
        # Computed tokens stand on the right: their sum with others might be too large for an int32.
        wrong = (computed != last_ends) | (step.num_scheduled_tokens > room - computed)
        wrong |= step.num_scheduled_tokens < 1
        if np.count_nonzero(wrong):
            row = int(np.argmax(wrong))
            raise _Violation(f"{ids[row]!r} {self._fault(step, row, int(last_ends[row]))}")
        ends = computed + step.num_scheduled_tokens
        self._ends[rows] = ends
        self._num_known[rows] = np.maximum(known, ends + 1)
        if self._num_drafts is not None:
            self._num_drafts[rows] = 0 if drafts is None else drafts

    def _fault(self, step: SchedulerOutput, row: int, last_end: int) -> str:
        """Say what is wrong with the tokens of the request in ``row``."""
        computed, scheduled = int(step.num_computed_tokens[row]), int(step.num_scheduled_tokens[row])
        if scheduled < 1:
            return "computes no token"
        if computed != last_end:
            return "skips or repeats tokens"
        if computed + scheduled <= self._room[self._step_rows[row]]:
            return "computes more tokens than it has"
        return (
            "exceeds max_model_len" if computed + scheduled > self._kv.max_model_len else "has too few blocks"
        )

    def _add_blocks(self, group: int, rows: Slots, blocks: Ragged, computed: IntArray) -> None:
        pooled = (blocks.values > 0) & (blocks.values < self._kv.num_blocks)
        if not pooled.all():
            places = np.repeat(np.arange(len(rows)), np.diff(blocks.offsets))
            num_null = np.zeros(len(rows), dtype=np.int32)
            for row in np.unique(places[~pooled & (self._ends[rows] < 0)[places]]).tolist():
                num_null[row] = self._num_null(group, blocks.row(row), int(computed[row]))
            pooled |= np.arange(len(places)) - blocks.offsets[places] < num_null[places]
        _require(bool(pooled.all()), f"blocks {blocks.values[~pooled].tolist()} are not for tokens")
        self._num_blocks[group, rows] += np.diff(blocks.offsets)
        held = self._num_blocks[:, rows].min(axis=0)
        self._room[rows] = np.minimum(held * self._kv.block_size, self._kv.max_model_len)

    def _num_null(self, group: int, blocks: IntArray, num_computed: int) -> int:
        """Return how many of a whole table's leading entries are rightly the null block."""
        num_null, kind = 0, self._kinds[group]
        while num_null < len(blocks) and blocks[num_null] == 0 and kind.freed_at(num_null) <= num_computed:
            num_null += 1
        return num_null

    def _enter(self, name: str, num_known: int) -> None:
        _require(bool(self._free_rows), f"more requests run than max_num_seqs {self._max_num_seqs}")
        row = self._row_of[name] = self._free_rows.pop()
        self._ends[row] = -1
        self._num_known[row] = num_known
        self._num_blocks[:, row] = 0
        self._room[row] = 0
        if self._num_drafts is not None:
            self._num_drafts[row] = 0

    def _drop(self, name: str, what: str) -> int:
        _require(name in self._row_of, f"{name!r} is {what}, but it does not run")
        row = self._row_of.pop(name)
        self._free_rows.append(row)
        return row


class _Violation(Exception):
    pass


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise _Violation(text)
