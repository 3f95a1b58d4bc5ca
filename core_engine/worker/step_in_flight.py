"""A step whose results are on their way from the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from core_engine._ragged import Array, IntArray, Ragged
from core_engine.scheduler.output import SchedulerOutput
from core_engine.worker.device_io import Download
from core_engine.worker.input_batch import PreparedStep
from core_engine.worker.output import LogprobRows, ModelRunnerOutput

__all__ = ["StepInFlight"]


class StepInFlight:
    """The handle that `StepModelRunner.execute_model` returns.

    The first ``result`` waits for the download, gives the sampled tokens to the batch through
    ``commit`` and builds the output; later calls return the same object.
    """

    def __init__(
        self,
        step: SchedulerOutput,
        prepared: PreparedStep,
        download: Download,
        commit: Callable[[IntArray, IntArray, IntArray | None], None],
    ) -> None:
        self._step = step
        self._prepared = prepared
        self._download = download
        self._commit = commit
        self._output: ModelRunnerOutput | None = None

    def result(self, timeout_s: float | None = None) -> ModelRunnerOutput:
        """Wait for the step; see `StepHandle.result`."""
        if self._output is None:
            arrays = self._download.arrays(timeout_s)
            self._output = self._build(arrays)
        return self._output

    def _build(self, arrays: Mapping[str, Array]) -> ModelRunnerOutput:
        step, prepared = self._step, self._prepared
        columns = prepared.sampling
        if not len(columns):
            return ModelRunnerOutput(
                step_id=step.step_id,
                sampled_token_ids=Ragged.from_rows([]),
                prompt_logprobs=self._prompt_logprobs(arrays),
            )
        whole_step = len(columns) == len(step.request_ids)
        num_logprobs, drafts = prepared.host.num_logprobs, prepared.drafts
        if drafts is None:
            accepted = columns
            token_ids = arrays["token_ids"][columns].astype(np.int32, copy=False)
            self._commit(prepared.rows[columns], token_ids, None)
            sampled = Ragged(token_ids, np.arange(len(columns) + 1, dtype=np.int32))
        else:
            token_ids = arrays["token_ids"][: len(drafts)].astype(np.int32, copy=False)
            accepted = drafts.accepted(token_ids, columns)
            token_ids, requests = token_ids[accepted], drafts.requests[accepted]
            self._commit(prepared.rows[requests], token_ids, drafts.nth[accepted])
            offsets = np.zeros(len(columns) + 1, dtype=np.int32)
            np.cumsum(np.bincount(requests)[columns], out=offsets[1:])
            sampled = Ragged(token_ids, offsets)
        return ModelRunnerOutput(
            step_id=step.step_id,
            request_ids=step.request_ids if whole_step else tuple(step.request_ids[i] for i in columns),
            sampled_token_ids=sampled,
            logprobs=None if num_logprobs is None else _logprob_rows(arrays, accepted, num_logprobs),
            prompt_logprobs=self._prompt_logprobs(arrays),
        )

    def _prompt_logprobs(self, arrays: Mapping[str, Array]) -> dict[str, LogprobRows]:
        if not self._prepared.prompt_scoring:
            return {}
        chunks = range(len(self._prepared.host.prompt_rows))
        scored = {
            name: np.concatenate([arrays[f"prompt_{name}_{chunk}"] for chunk in chunks])
            for name in ("logprob_ids", "logprobs", "ranks")
        }
        return {
            part.request_id: _logprob_rows(scored, slice(part.start, part.stop), part.num_logprobs)
            for part in self._prepared.prompt_scoring
        }


def _logprob_rows(arrays: Mapping[str, Array], rows: IntArray | slice, num_logprobs: int) -> LogprobRows:
    columns = slice(0, num_logprobs + 1)
    return LogprobRows(
        token_ids=arrays["logprob_ids"][rows, columns],
        logprobs=arrays["logprobs"][rows, columns],
        ranks=arrays["ranks"][rows],
    )
