"""The persistent input batch: what the runner knows of each request, as rows of numpy arrays.

A request gets a row when it is first scheduled and keeps it until it is preempted or finished. A
step gathers its requests' rows, so nothing is ever moved or swapped. There is no Python loop over
tokens; loops over requests run only for those that come, go or ask for something special.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core_engine._ragged import IntArray, Ragged
from core_engine.kv_cache.specs import KVCacheConfig
from core_engine.lora.slots import LoRASlots
from core_engine.scheduler.output import NewRequest, SchedulerOutput
from core_engine.worker.block_tables import BlockTable
from core_engine.worker.draft_rows import DraftRows
from core_engine.worker.lora_column import LoRAColumn
from core_engine.worker.sampling_state import SamplingState
from core_engine.worker.shape_policy import ShapePolicy, StepKind, StepShape
from core_engine.worker.step import HostStep

__all__ = ["InputBatch", "PreparedStep", "PromptScoring"]


@dataclass(frozen=True, slots=True)
class PromptScoring:
    """Which entries of a step's prompt chunks belong to one request: ``[start, stop)`` of them joined."""

    request_id: str
    start: int
    stop: int
    num_logprobs: int


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A step ready for upload and what is needed to read its results."""

    host: HostStep
    #: int32 ``[num_reqs]``: batch rows of the step's requests.
    rows: IntArray
    #: int32: which requests of the step (indices into its columns) sample.
    sampling: IntArray
    prompt_scoring: tuple[PromptScoring, ...]
    #: The sampler's rows where requests verify drafts; None: one row for each request.
    drafts: DraftRows | None = None


class InputBatch:
    """Token ids, lengths, block tables and sampling options of all requests that hold a row."""

    def __init__(
        self,
        kv: KVCacheConfig,
        shapes: ShapePolicy,
        *,
        max_num_seqs: int,
        vocab_size: int,
        loras: LoRASlots | None = None,
    ) -> None:
        self.shapes = shapes
        self._lora = LoRAColumn(loras, max_num_seqs, shapes)
        self.token_table: IntArray = np.zeros((max_num_seqs, kv.max_model_len), dtype=np.int32)
        self.num_prompt_tokens: IntArray = np.zeros(max_num_seqs, dtype=np.int32)
        self.num_tokens: IntArray = np.zeros(max_num_seqs, dtype=np.int32)
        self.block_tables = tuple(
            BlockTable(max_num_seqs, kv.max_blocks_per_request, kv.block_size) for _ in kv.groups
        )
        self.sampling = SamplingState(max_num_seqs, vocab_size)
        self._row_of: dict[str, int] = {}
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._requests: dict[str, NewRequest] = {}
        self._parked_tokens: dict[str, IntArray] = {}
        # request id → (columns asked for, first prompt position not scored yet); a preempted request
        # computes its prompt again, but its rows are reported once.
        self._scored: dict[str, tuple[int, int]] = {}
        self._step_ids: tuple[str, ...] = ()
        self._step_rows: IntArray = np.zeros(0, dtype=np.int32)

    def apply(self, step: SchedulerOutput) -> None:
        """Bring the rows up to date with a scheduler's message."""
        for request_id in step.finished_request_ids:
            self._release(request_id)
            self._requests.pop(request_id, None)
            self._parked_tokens.pop(request_id, None)
            self._scored.pop(request_id, None)
        for request_id in step.preempted_request_ids:
            row = self._row_of.get(request_id)
            if row is None:
                continue  # told again after a step that failed
            self._parked_tokens[request_id] = self.token_table[row, : self.num_tokens[row]].copy()
            self._release(request_id)
        for request in step.new_requests:
            self._requests[request.request_id] = request
            if request.sampling_params.prompt_logprobs is not None:
                self._scored[request.request_id] = (request.sampling_params.prompt_logprobs, 0)
            self._occupy(request, request.prompt_token_ids)
        for request_id in step.resumed_request_ids:
            self._occupy(self._requests[request_id], self._parked_tokens.pop(request_id))
        rows = self._rows(step.request_ids)
        for table, new_blocks in zip(self.block_tables, step.new_block_ids, strict=True):
            table.append(rows, new_blocks)

    def prepare(self, step: SchedulerOutput) -> PreparedStep:
        """Build the padded arrays of a step whose message was applied; at least one token."""
        num_reqs, counts = len(step.request_ids), step.num_scheduled_tokens
        num_tokens = int(counts.sum())
        rows = self._rows(step.request_ids)
        drafts, known = None, self.num_tokens[rows]
        if step.draft_token_ids is not None:
            drafts = self._write_drafts(step.draft_token_ids, rows)
            known += np.diff(step.draft_token_ids.offsets)
        kind = StepKind.DECODE if num_tokens == num_reqs else StepKind.MIXED
        # Drafts take rows of the sampler, so the shape has as many rows of requests.
        shape = self.shapes.pad(num_tokens, num_reqs if drafts is None else len(drafts), kind)

        query_start = np.full(shape.num_reqs + 1, num_tokens, dtype=np.int32)
        query_start[0] = 0
        np.cumsum(counts, out=query_start[1 : num_reqs + 1])
        token_rows = np.full(shape.num_tokens, -1, dtype=np.int32)
        token_rows[:num_tokens] = np.repeat(np.arange(num_reqs, dtype=np.int32), counts)
        request_of, batch_rows = token_rows[:num_tokens], rows[token_rows[:num_tokens]]
        positions = np.zeros(shape.num_tokens, dtype=np.int32)
        first = step.num_computed_tokens - query_start[:num_reqs]
        positions[:num_tokens] = np.arange(num_tokens, dtype=np.int32) + first[request_of]
        token_ids = np.zeros(shape.num_tokens, dtype=np.int32)
        token_ids[:num_tokens] = self.token_table[batch_rows, positions[:num_tokens]]

        seq_lens = np.zeros(shape.num_reqs, dtype=np.int32)
        seq_lens[:num_reqs] = step.num_computed_tokens + counts
        logits_rows = np.zeros(shape.num_reqs, dtype=np.int32)
        if drafts is None:
            logits_rows[:num_reqs] = query_start[1 : num_reqs + 1] - 1
        else:
            logits_rows[: len(drafts)] = drafts.last_tokens(query_start)
        slot_mapping, tables = [], []
        for table in self.block_tables:
            slots = np.zeros(shape.num_tokens, dtype=np.int32)
            slots[:num_tokens] = table.slots(batch_rows, positions[:num_tokens])
            slot_mapping.append(slots)
            padded = np.zeros((shape.num_reqs, table.table.shape[1]), dtype=np.int32)
            padded[:num_reqs] = table.table[rows]
            tables.append(padded)

        sampling = np.flatnonzero(seq_lens[:num_reqs] == known).astype(np.int32)
        prompt_rows, prompt_targets, scoring = self._score_prompts(step, rows, query_start, shape)
        host = HostStep(
            shape=shape,
            num_tokens=num_tokens,
            num_reqs=num_reqs,
            token_ids=token_ids,
            positions=positions,
            token_rows=token_rows,
            query_start=query_start,
            seq_lens=seq_lens,
            slot_mapping=tuple(slot_mapping),
            block_tables=tuple(tables),
            logits_rows=logits_rows,
            sampling=self.sampling.build(
                rows if drafts is None else rows[drafts.requests],
                shape.num_reqs,
                self.token_table,
                self.num_prompt_tokens,
                self.num_tokens,
                self.shapes.widen,
                None if drafts is None else drafts.nth,
            ),
            num_logprobs=self.sampling.num_logprobs(rows[sampling]),
            prompt_rows=prompt_rows,
            prompt_targets=prompt_targets,
            lora_slots=self._lora.gather(batch_rows, shape.num_tokens),
        )
        return PreparedStep(host, rows, sampling, scoring, drafts)

    def commit(self, rows: IntArray, token_ids: IntArray, nth: IntArray | None = None) -> None:
        """Append a sampled token to each of ``rows``.

        A row may get several, in order; ``nth`` then counts them from 0 for each row. A row without a token
        (-1) ends with this step; a step behind it that is under way already reads token 0 there.
        """
        positions = self.num_tokens[rows]
        if nth is not None:
            positions += nth
        self.token_table[rows, positions] = np.maximum(token_ids, 0)
        # Of a row's several tokens the last one counts.
        self.num_tokens[rows] = positions + 1

    def _write_drafts(self, drafts: Ragged, rows: IntArray) -> DraftRows:
        """Put drafts after the known tokens, without counting them: what is sampled goes over them."""
        draft_rows = DraftRows.of(drafts)
        is_draft = draft_rows.nth > 0
        targets = rows[draft_rows.requests[is_draft]]
        self.token_table[targets, self.num_tokens[targets] + draft_rows.nth[is_draft] - 1] = drafts.values
        return draft_rows

    def _rows(self, request_ids: tuple[str, ...]) -> IntArray:
        # The scheduler hands out the same tuple while the running set is unchanged.
        if request_ids is not self._step_ids:
            row_of = self._row_of
            self._step_rows = np.array([row_of[request_id] for request_id in request_ids], dtype=np.int32)
            self._step_ids = request_ids
        return self._step_rows

    def _occupy(self, request: NewRequest, token_ids: IntArray) -> None:
        row = self._free_rows.pop()
        self._row_of[request.request_id] = row
        self._step_ids = ()
        self.token_table[row, : len(token_ids)] = token_ids
        self.num_tokens[row] = len(token_ids)
        self.num_prompt_tokens[row] = len(request.prompt_token_ids)
        self.sampling.add(row, request)
        self._lora.occupy(row, request.lora_id)

    def _release(self, request_id: str) -> None:
        row = self._row_of.pop(request_id, None)
        if row is None:
            return
        self._step_ids = ()
        self._free_rows.append(row)
        self.sampling.remove(row)
        self._lora.vacate(row)
        for table in self.block_tables:
            table.clear(row)

    def _score_prompts(
        self, step: SchedulerOutput, rows: IntArray, query_start: IntArray, shape: StepShape
    ) -> tuple[tuple[IntArray, ...], tuple[IntArray, ...], tuple[PromptScoring, ...]]:
        if not self._scored:
            return (), (), ()
        token_index, targets, scoring, total = [], [], [], 0
        for index, request_id in enumerate(step.request_ids):
            if request_id not in self._scored:
                continue
            num_logprobs, next_position = self._scored[request_id]
            row, computed = rows[index], int(step.num_computed_tokens[index])
            start = max(computed, next_position)
            stop = min(computed + int(step.num_scheduled_tokens[index]), int(self.num_prompt_tokens[row]) - 1)
            if stop <= start:
                continue
            self._scored[request_id] = (num_logprobs, stop)
            first = int(query_start[index]) + start - computed
            token_index.append(np.arange(first, first + stop - start, dtype=np.int32))
            targets.append(self.token_table[row, start + 1 : stop + 1])
            scoring.append(PromptScoring(request_id, total, total + stop - start, num_logprobs))
            total += stop - start
        if not total:
            return (), (), ()
        width = shape.num_reqs
        pad = -total % width
        chunks = [np.pad(np.concatenate(part), (0, pad), mode="edge") for part in (token_index, targets)]
        num_chunks = (total + pad) // width
        return (
            tuple(np.split(chunks[0], num_chunks)),
            tuple(np.split(chunks[1], num_chunks)),
            tuple(scoring),
        )
