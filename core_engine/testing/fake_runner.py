"""FakeRunner: executes `SchedulerOutput` without weights and refuses every step that breaks its contract.

For tests of schedulers and engines::

    runner = FakeRunner(KVCacheConfig(num_blocks=9, block_size=4, max_model_len=64, groups=(group,)))
    output = runner.execute_model(scheduler.schedule()).result()

The tokens that come out equal `FakeModel.generate`; if the scheduler hands over a wrong block, skips a
position or reads what was never written, `ScheduleViolation` says which request and where. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from core_engine._ragged import Ragged
from core_engine.kv_cache.specs import KVCacheConfig
from core_engine.scheduler.output import NewRequest, SchedulerOutput
from core_engine.testing.fake_cache import FakeKVCache, FakePool, ScheduleViolation, require
from core_engine.testing.fake_model import FakeModel
from core_engine.worker.output import FinishedStep, LogprobRows, ModelRunnerOutput

__all__ = ["FakeRunner", "ScheduleViolation"]


@dataclass(slots=True)
class _Request:
    """What the runner keeps of one request: its tokens, their states and its block tables."""

    data: NewRequest
    tokens: list[int]
    states: list[int]
    #: One table per KV-cache group; None while preempted.
    tables: list[list[int]] | None
    num_computed: int = 0
    #: How many of the tokens are drafts, which come last; none once the step has run.
    num_drafts: int = 0

    @property
    def held_tables(self) -> list[list[int]]:
        if self.tables is None:
            raise ScheduleViolation(f"{self.data.request_id!r} holds no blocks")
        return self.tables


@dataclass(slots=True)
class _Sampled:
    """The columns of a step's output while they grow."""

    request_ids: list[str] = field(default_factory=list)
    #: How many of ``tokens`` each request sampled.
    counts: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    states: list[int] = field(default_factory=list)
    num_logprobs: int | None = None

    def rows(self) -> Ragged:
        """Return the tokens, one row per request."""
        offsets = np.concatenate([[0], np.cumsum(self.counts, dtype=np.int32)]).astype(np.int32)
        return Ragged(np.array(self.tokens, dtype=np.int32), offsets)


class FakeRunner:
    """Keeps tokens and block tables as a model runner does, and checks each step before it runs.

    Checked: step ids count up; columns agree; requests are new, resumed or known as stated;
    positions go on where the last step ended; tokens are known; block ids lie in the pool, never twice
    in a table, and the table covers the step; the tokens counted as computed stand in their blocks as far
    as a layer sees them, written by an earlier step; a block that is written is not the null block and
    belongs to one request alone; the optional limits on tokens and requests per step and on adapters at
    once hold. Drafts are verified, and the cache keeps the states of those that were rejected: nobody may
    count on them.

    A step id that is left out is a step that was lost on its way: what ended then may be unknown here.
    """

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        model: FakeModel | None = None,
        *,
        max_num_batched_tokens: int | None = None,
        max_num_seqs: int | None = None,
        max_loras: int | None = None,
    ) -> None:
        self.config = kv_cache_config
        self.model = model or FakeModel()
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.max_loras = max_loras
        self._requests: dict[str, _Request] = {}
        self._next_step_id = 0
        #: Whether steps were lost on their way to the runner, so that ends of unknown requests are no fault.
        self._has_lost = False
        #: Who left with the last step; when that failed behind the runner's back, they are told again.
        self._last_left: frozenset[str] = frozenset()
        self.pool = FakePool(kv_cache_config.num_blocks, kv_cache_config.block_size)
        groups = range(len(kv_cache_config.groups))
        self._caches = [FakeKVCache(kv_cache_config, group, self.pool) for group in groups]

    @property
    def request_ids(self) -> frozenset[str]:
        """The requests that the runner knows; empty when every end has been told."""
        return frozenset(self._requests)

    def execute_model(self, scheduler_output: SchedulerOutput) -> FinishedStep:
        """Check and compute one step. Raises `ScheduleViolation` for a step that breaks the contract."""
        step = scheduler_output
        self._check_columns(step)
        self._finish_and_preempt(step)
        self._add_and_resume(step)
        rows = [self._requests[request_id] for request_id in step.request_ids]
        sizes = [int(size) for size in step.num_scheduled_tokens]
        self._append_blocks(step, rows)
        self._append_drafts(step, rows)
        # All reads are checked before any write: no request may rely on what this very step writes.
        for row, size, computed in zip(rows, sizes, step.num_computed_tokens, strict=True):
            self._check_row(row, size, int(computed))
        sampled = _Sampled()
        prompt_logprobs: dict[str, LogprobRows] = {}
        for row, size in zip(rows, sizes, strict=True):
            for cache, table in zip(self._caches, row.held_tables, strict=True):
                cache.write(table, row.states, row.num_computed, size)
            self._add_prompt_logprobs(row, size, prompt_logprobs)
            row.num_computed += size
            if row.num_computed == len(row.tokens):
                self._verify(row, sampled)
            for cache, table in zip(self._caches, row.held_tables, strict=True):
                cache.let_go(table, row.num_computed)
        return FinishedStep(self._output(step.step_id, sampled, prompt_logprobs))

    def _check_columns(self, step: SchedulerOutput) -> None:
        expected, self._next_step_id = self._next_step_id, step.step_id + 1
        require(step.step_id >= expected, f"step {step.step_id} came, step {expected} is next")
        self._has_lost = step.step_id > expected
        num_reqs = len(step.request_ids)
        require(len(set(step.request_ids)) == num_reqs, f"a request stands twice in {step.request_ids}")
        for column in (step.num_scheduled_tokens, step.num_computed_tokens):
            fits = column.dtype == np.int32 and column.shape == (num_reqs,)
            require(fits, f"a column is {column.dtype} {list(column.shape)}, not int32 [{num_reqs}]")
        require(len(step.new_block_ids) == len(self._caches), "new_block_ids needs one entry per cache group")
        for blocks in step.new_block_ids:
            require(len(blocks) == num_reqs, f"{len(blocks)} rows of blocks for {num_reqs} requests")
        if self.max_num_seqs is not None:
            require(num_reqs <= self.max_num_seqs, f"{num_reqs} requests, at most {self.max_num_seqs}")
        if (limit := self.max_num_batched_tokens) is not None:
            require(step.total_num_tokens <= limit, f"{step.total_num_tokens} tokens, at most {limit}")

    def _finish_and_preempt(self, step: SchedulerOutput) -> None:
        for name in step.finished_request_ids:
            row = self._requests.pop(name, None)
            if row is not None:
                self._release(row)
            else:
                require(self._may_have_left(name), f"{name!r} is finished, but the runner does not know it")
        for name in step.preempted_request_ids:
            row = self._requests.get(name)
            if row is not None and row.tables is not None:
                self._release(row)
            else:
                require(self._may_have_left(name), f"{name!r} is preempted, but it is not running")
        self._last_left = frozenset((*step.finished_request_ids, *step.preempted_request_ids))

    def _may_have_left(self, name: str) -> bool:
        return self._has_lost or name in self._last_left

    def _add_and_resume(self, step: SchedulerOutput) -> None:
        for new in step.new_requests:
            name = new.request_id
            require(name not in self._requests, f"new request {name!r} is known already")
            tokens = [int(token) for token in new.prompt_token_ids]
            require(bool(tokens), f"new request {name!r} has no prompt")
            states = self.model.states(tokens, self.model.first_state(new.lora_id))
            self._requests[name] = _Request(new, tokens, states, self._empty_tables())
        for name in step.resumed_request_ids:
            row = self._requests.get(name)
            if row is None or row.tables is not None:
                raise ScheduleViolation(f"{name!r} is resumed, but it was not preempted")
            row.tables = self._empty_tables()
        if self.max_loras is not None:
            held = {r.data.lora_id for r in self._requests.values() if r.tables is not None} - {0}
            require(len(held) <= self.max_loras, f"adapters {sorted(held)}, at most {self.max_loras} at once")
        whole = {*(new.request_id for new in step.new_requests), *step.resumed_request_ids}
        idle = whole.difference(step.request_ids)
        require(not idle, f"new or resumed, but nothing to compute: {sorted(idle)}")
        for name, computed in zip(step.request_ids, step.num_computed_tokens, strict=True):
            row = self._requests.get(name)
            if row is None or row.tables is None:
                state = "is not known" if row is None else "is preempted"
                raise ScheduleViolation(f"{name!r} {state} and neither new nor resumed")
            if name in whole:
                # A prefix of any length may come from the cache; its content is checked below.
                row.num_computed = int(computed)

    def _append_blocks(self, step: SchedulerOutput, rows: list[_Request]) -> None:
        for group, (cache, blocks) in enumerate(zip(self._caches, step.new_block_ids, strict=True)):
            for index, row in enumerate(rows):
                new = [int(block) for block in blocks.row(index)]
                cache.append(row.data.request_id, row.held_tables[group], new)

    def _append_drafts(self, step: SchedulerOutput, rows: list[_Request]) -> None:
        if step.draft_token_ids is None:
            return
        require(len(step.draft_token_ids) == len(rows), "draft_token_ids needs one row per request")
        num_rows = len(rows) + len(step.draft_token_ids.values)
        if (limit := self.max_num_seqs) is not None:
            require(num_rows <= limit, f"{num_rows} requests and drafts, at most {limit}")
        for index, row in enumerate(rows):
            drafts = [int(token) for token in step.draft_token_ids.row(index)]
            known = int(step.num_scheduled_tokens[index]) - len(drafts)
            decodes = known == 1 and int(step.num_computed_tokens[index]) + 1 == len(row.tokens)
            require(not drafts or decodes, f"{row.data.request_id!r}: drafts, but it does not decode")
            row.states += self.model.states(drafts, row.states[-1])
            row.tokens += drafts
            row.num_drafts = len(drafts)

    def _check_row(self, row: _Request, size: int, computed: int) -> None:
        name, end, known = row.data.request_id, computed + size, len(row.tokens)
        require(size >= 1, f"{name!r}: {size} tokens scheduled")
        require(computed == row.num_computed, f"{name!r}: starts at {computed}, not at {row.num_computed}")
        require(computed >= 0 and end <= known, f"{name!r}: computes {computed} to {end} of {known} tokens")
        limit = self.config.max_model_len
        require(end <= limit, f"{name!r}: {end} tokens, at most {limit}")
        for cache, table in zip(self._caches, row.held_tables, strict=True):
            cache.check(name, table, row.states, computed, size)

    def _verify(self, row: _Request, sampled: _Sampled) -> None:
        """Sample after the known tokens, and after each draft as long as what was sampled equals it."""
        num_drafts, row.num_drafts = row.num_drafts, 0
        first = len(row.tokens) - num_drafts
        drafts = [*row.tokens[first:], None]
        del row.tokens[first:], row.states[first:]
        row.num_computed = first - 1
        sampled.request_ids.append(row.data.request_id)
        sampled.counts.append(0)
        for draft in drafts:
            row.num_computed += 1
            self._sample(row, sampled)
            if row.tokens[-1] != draft:
                break

    def _sample(self, row: _Request, sampled: _Sampled) -> None:
        data, params = row.data, row.data.sampling_params
        early = len(row.tokens) - len(data.prompt_token_ids) < params.min_tokens
        token = self.model.choose(
            row.states[-1],
            params,
            seed=data.seed,
            stream=data.stream,
            position=len(row.tokens),
            forbidden=(*data.eos_token_ids, *params.stop_token_ids) if early else (),
        )
        sampled.counts[-1] += 1
        sampled.tokens.append(token)
        sampled.states.append(row.states[-1])
        if params.logprobs is not None:
            sampled.num_logprobs = max(sampled.num_logprobs or 0, params.logprobs)
        row.tokens.append(token)
        row.states.append(self.model.next_state(row.states[-1], token))

    def _add_prompt_logprobs(self, row: _Request, size: int, rows: dict[str, LogprobRows]) -> None:
        k, start = row.data.sampling_params.prompt_logprobs, row.num_computed
        end = min(start + size, len(row.data.prompt_token_ids) - 1)
        if k is not None and start < end:
            targets = row.tokens[start + 1 : end + 1]
            rows[row.data.request_id] = self.model.logprobs(row.states[start:end], targets, k)

    def _output(
        self, step_id: int, sampled: _Sampled, prompt_logprobs: dict[str, LogprobRows]
    ) -> ModelRunnerOutput:
        k = sampled.num_logprobs
        return ModelRunnerOutput(
            step_id=step_id,
            request_ids=tuple(sampled.request_ids),
            sampled_token_ids=sampled.rows(),
            logprobs=None if k is None else self.model.logprobs(sampled.states, sampled.tokens, k),
            prompt_logprobs=prompt_logprobs,
        )

    def _release(self, row: _Request) -> None:
        if row.tables is not None:
            for cache, table in zip(self._caches, row.tables, strict=True):
                cache.release(table)
        row.tables = None

    def _empty_tables(self) -> list[list[int]]:
        return [[] for _ in self._caches]
