"""One scheduled step as several on the device, for devices that cannot mix prefill and decode."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from core_engine._ragged import IntArray, Ragged
from core_engine.scheduler.output import SchedulerOutput
from core_engine.worker.output import LogprobRows, ModelRunnerOutput, StepHandle

__all__ = ["SubSteps", "split_by_kind"]


def split_by_kind(step: SchedulerOutput) -> tuple[SchedulerOutput, ...]:
    """Divide the rows of a mixed step: those that compute one token, then those that compute several.

    A step of one kind is returned alone, as it is. The parts say what to compute and nothing else:
    what the step tells of requests and blocks must have been applied as a whole.
    """
    single = step.num_scheduled_tokens == 1
    if single.all() or not single.any():
        return (step,)
    return tuple(_part(step, np.flatnonzero(rows).astype(np.int32)) for rows in (single, ~single))


def _part(step: SchedulerOutput, rows: IntArray) -> SchedulerOutput:
    drafts = None if step.draft_token_ids is None else step.draft_token_ids.take(rows)
    return replace(
        step,
        request_ids=tuple(step.request_ids[row] for row in rows),
        num_scheduled_tokens=step.num_scheduled_tokens[rows],
        num_computed_tokens=step.num_computed_tokens[rows],
        new_block_ids=(),
        new_requests=(),
        resumed_request_ids=(),
        preempted_request_ids=(),
        finished_request_ids=(),
        draft_token_ids=drafts if drafts is not None and len(drafts.values) else None,
    )


class SubSteps:
    """The handle of a step whose parts were started one after the other."""

    def __init__(self, step: SchedulerOutput, parts: Sequence[StepHandle]) -> None:
        self._step = step
        self._parts = parts
        self._output: ModelRunnerOutput | None = None

    def result(self, timeout_s: float | None = None) -> ModelRunnerOutput:
        """Wait for all parts and return one output; see `StepHandle.result`."""
        if self._output is None:
            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            outputs = []
            for part in self._parts:
                left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
                outputs.append(part.result(left_s))
            self._output = _join(self._step, outputs)
        return self._output


def _join(step: SchedulerOutput, outputs: Sequence[ModelRunnerOutput]) -> ModelRunnerOutput:
    """Put the rows of ``outputs`` into the order of ``step``."""
    row_of = {
        request_id: row
        for row, request_id in enumerate(
            request_id for output in outputs for request_id in output.request_ids
        )
    }
    request_ids = tuple(request_id for request_id in step.request_ids if request_id in row_of)
    rows = np.array([row_of[request_id] for request_id in request_ids], dtype=np.int32)
    sampled = Ragged.join([output.sampled_token_ids for output in outputs])
    return ModelRunnerOutput(
        step_id=step.step_id,
        request_ids=request_ids,
        sampled_token_ids=sampled.take(rows),
        logprobs=_join_logprobs(outputs, sampled.places(rows)),
        prompt_logprobs={key: value for output in outputs for key, value in output.prompt_logprobs.items()},
    )


def _join_logprobs(outputs: Sequence[ModelRunnerOutput], places: IntArray) -> LogprobRows | None:
    """Return the rows of all parts, taken by ``places``; where a part has fewer columns, NaN and token 0."""
    widths = [output.logprobs.token_ids.shape[1] for output in outputs if output.logprobs is not None]
    if not widths:
        return None
    num_rows = sum(len(output.sampled_token_ids.values) for output in outputs)
    token_ids = np.zeros((num_rows, max(widths)), dtype=np.int32)
    logprobs = np.full((num_rows, max(widths)), np.nan, dtype=np.float32)
    ranks = np.zeros(num_rows, dtype=np.int32)
    start = 0
    for output in outputs:
        stop = start + len(output.sampled_token_ids.values)
        if output.logprobs is not None:
            width = output.logprobs.token_ids.shape[1]
            token_ids[start:stop, :width] = output.logprobs.token_ids
            logprobs[start:stop, :width] = output.logprobs.logprobs
            ranks[start:stop] = output.logprobs.ranks
        start = stop
    return LogprobRows(token_ids=token_ids[places], logprobs=logprobs[places], ranks=ranks[places])
