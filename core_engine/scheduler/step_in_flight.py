"""StepInFlight: what the scheduler remembers of a step until its results come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from core_engine._ragged import IntArray, Ragged
from core_engine.errors import ContractError
from core_engine.scheduler.columns import Slots
from core_engine.scheduler.request import RequestState
from core_engine.scheduler.step_rows import StepRows
from core_engine.worker.output import ModelRunnerOutput

__all__ = ["StepInFlight", "rows_of_tokens"]


@dataclass(slots=True)
class StepInFlight:
    """One scheduled step; row ``i`` of every column is ``requests[i]``."""

    step_id: int
    requests: Sequence[RequestState]
    slots: Slots
    #: The slots' epochs when the step was scheduled.
    epochs: IntArray
    #: Tokens computed once the step has run.
    ends: IntArray
    #: Rows that sample; None when all do.
    sampling: Sequence[int] | None
    #: The ids that the output must carry.
    sampling_ids: tuple[str, ...]
    #: int32: drafts of each row; None where no row has any.
    num_drafts: IntArray | None = None

    @classmethod
    def of(
        cls, step_id: int, rows: StepRows, epochs: IntArray, ends: IntArray, samples: npt.NDArray[np.bool_]
    ) -> StepInFlight:
        """Remember ``rows``; ``samples`` marks those that sample."""
        sampling, sampling_ids = None, rows.request_ids
        if np.count_nonzero(samples) < len(samples):
            sampling = samples.nonzero()[0].tolist()
            sampling_ids = tuple([rows.request_ids[row] for row in sampling])
        return cls(step_id, rows.requests, rows.slots, epochs, ends, sampling, sampling_ids)

    @property
    def sampling_requests(self) -> Sequence[RequestState]:
        """The requests that sample, in the order of the output's rows."""
        if self.sampling is None:
            return self.requests
        return [self.requests[row] for row in self.sampling]

    def check(self, output: ModelRunnerOutput) -> None:
        """Raise `ContractError` unless ``output`` answers this step, row by row."""
        if output.step_id != self.step_id or output.request_ids != self.sampling_ids:
            raise ContractError(
                f"step {self.step_id} samples {list(self.sampling_ids)}, but the model runner answered "
                f"step {output.step_id} with {list(output.request_ids)}"
            )
        if len(output.sampled_token_ids) != len(self.sampling_ids):
            raise ContractError(
                f"step {self.step_id}: {len(output.sampled_token_ids)} rows of token ids "
                f"for {len(self.sampling_ids)} requests"
            )


def rows_of_tokens(sampled: Ragged) -> Sequence[tuple[int, ...]]:
    """Return the rows as tuples; every row must hold at least one id, else `ContractError`."""
    values, offsets = sampled.values.tolist(), sampled.offsets
    # One id in each row; comparing bytes is the fastest way to compare arrays.
    if offsets.tobytes() == np.arange(len(values) + 1, dtype=offsets.dtype).tobytes():
        return list(zip(values, strict=True))
    rows = [tuple(values[start:stop]) for start, stop in pairwise(offsets.tolist())]
    if not all(rows):
        raise ContractError("a request sampled, but the model runner returned no token for it")
    return rows
