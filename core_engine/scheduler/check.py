"""StepChecker: the engine's check of every step that a scheduler builds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from core_engine._ragged import IntArray
from core_engine.errors import ContractError

if TYPE_CHECKING:
    from core_engine.kv_cache.specs import KVCacheConfig
    from core_engine.scheduler.output import SchedulerOutput

__all__ = ["StepChecker"]


class StepChecker:
    """Raises `ContractError` for a step that no runner could compute correctly.

    * Uniqueness: a request stands in a step once, and is new, resumed or known as the step says.
    * Budget: tokens and requests stay within the limits.
    * Capacity: blocks come from the pool, never the null block, and hold the request's tokens.
    * Length: a request goes on where its last step ended, by at least one token and at most to
      max_model_len.

    Whether two requests write to one block takes whole block tables: `core_engine.testing` finds that.
    """

    def __init__(self, kv: KVCacheConfig, *, max_num_batched_tokens: int, max_num_seqs: int) -> None:
        self._kv = kv
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_num_seqs = max_num_seqs
        self._ends: IntArray = np.zeros(max_num_seqs, dtype=np.int32)
        self._num_blocks: IntArray = np.zeros((len(kv.groups), max_num_seqs), dtype=np.int32)
        self._row_of: dict[str, int] = {}
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._preempted: set[str] = set()

    def check(self, step: SchedulerOutput) -> None:
        """Check ``step`` and remember it; steps come in order."""
        try:
            self._apply_news(step)
            self._check_columns(step)
            self._check_tokens(step)
        except _Violation as violation:
            raise ContractError(f"the scheduler built a wrong step {step.step_id}: {violation}") from None

    def _apply_news(self, step: SchedulerOutput) -> None:
        for name in step.finished_request_ids:
            if name in self._preempted:
                self._preempted.remove(name)
            else:
                self._drop(name, "finished")
        for name in step.preempted_request_ids:
            self._drop(name, "preempted")
            self._preempted.add(name)
        for new in step.new_requests:
            name = new.request_id
            _require(name not in self._row_of and name not in self._preempted, f"{name!r} is new twice")
            self._enter(name)
        for name in step.resumed_request_ids:
            _require(name in self._preempted, f"{name!r} is resumed, but it was not preempted")
            self._preempted.remove(name)
            self._enter(name)

    def _check_columns(self, step: SchedulerOutput) -> None:
        ids, total = step.request_ids, step.total_num_tokens
        lengths = {
            len(step.num_scheduled_tokens),
            len(step.num_computed_tokens),
            *map(len, step.new_block_ids),
        }
        _require(len(step.new_block_ids) == len(self._kv.groups), "not one entry of blocks per cache group")
        _require(lengths == {len(ids)}, f"columns of {lengths} rows for {len(ids)} requests")
        _require(len(set(ids)) == len(ids), "a request stands in it twice")
        budget = self._max_num_batched_tokens
        _require(total <= budget, f"{total} tokens, max_num_batched_tokens is {budget}")

    def _check_tokens(self, step: SchedulerOutput) -> None:
        ids, computed = step.request_ids, step.num_computed_tokens
        unknown = [name for name in ids if name not in self._row_of]
        _require(not unknown, f"{unknown} neither new nor resumed nor running")
        rows = np.array([self._row_of[name] for name in ids], dtype=np.intp)
        ends = computed + step.num_scheduled_tokens
        last_ends = self._ends[rows]
        entered = last_ends < 0
        num_entered = len(step.new_requests) + len(step.resumed_request_ids)
        _require(np.count_nonzero(entered) == num_entered, "a new or resumed request computes nothing")
        self._require_all(step.num_scheduled_tokens >= 1, ids, "computes no token")
        follows = np.where(entered, computed >= 0, computed == last_ends)
        self._require_all(follows, ids, "skips or repeats tokens")
        self._require_all(ends <= self._kv.max_model_len, ids, "exceeds max_model_len")
        for group, blocks in enumerate(step.new_block_ids):
            pooled = (blocks.values > 0) & (blocks.values < self._kv.num_blocks)
            _require(bool(pooled.all()), f"blocks {blocks.values[~pooled].tolist()} are not for tokens")
            held = self._num_blocks[group, rows] + np.diff(blocks.offsets)
            self._require_all(held * self._kv.block_size >= ends, ids, "has too few blocks")
            self._num_blocks[group, rows] = held
        self._ends[rows] = ends

    def _enter(self, name: str) -> None:
        _require(bool(self._free_rows), f"more requests run than max_num_seqs {self._max_num_seqs}")
        row = self._row_of[name] = self._free_rows.pop()
        self._ends[row] = -1  # a cached prefix of any length may stand before its first step
        self._num_blocks[:, row] = 0

    def _drop(self, name: str, what: str) -> None:
        _require(name in self._row_of, f"{name!r} is {what}, but it does not run")
        row = self._row_of.pop(name)
        self._ends[row] = 0
        self._free_rows.append(row)

    @staticmethod
    def _require_all(
        holds: np.ndarray[tuple[int], np.dtype[np.bool_]], ids: tuple[str, ...], text: str
    ) -> None:
        if not holds.all():
            _require(False, f"{ids[int(np.argmin(holds))]!r} {text}")


class _Violation(Exception):
    pass


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise _Violation(text)
