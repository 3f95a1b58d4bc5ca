"""The message from the model runner back to the engine: what one step produced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from core_engine._ragged import FloatArray, IntArray, Ragged

__all__ = ["FinishedStep", "LogprobRows", "ModelRunnerOutput", "StepHandle"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LogprobRows:
    """Log-probabilities of some positions: natural logarithms of the model's own distribution.

    Column 0 is the token at hand, columns 1… are the most likely tokens in falling order. They are
    taken from the logits before penalties, biases and temperature.
    """

    #: int32 ``[num_rows, 1 + k]``
    token_ids: IntArray
    #: float32 ``[num_rows, 1 + k]``
    logprobs: FloatArray
    #: int32 ``[num_rows]``: rank of the token at hand, 1 for the most likely.
    ranks: IntArray


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRunnerOutput:
    """What one step produced; row ``i`` belongs to ``request_ids[i]``.

    Only requests that sampled stand in it, in the order of the step.
    """

    step_id: int
    request_ids: tuple[str, ...] = ()
    #: Sampled ids, one per row unless drafts were verified; -1 where the model had no token to give, which
    #: ends that request with "error".
    sampled_token_ids: Ragged
    #: As many rows as ``sampled_token_ids.values``, with the largest k that a row of the step asked
    #: for; None when no row asked.
    logprobs: LogprobRows | None = None
    #: For each request whose prompt positions were computed in this step and that asked for
    #: them: one row per computed position whose next token is a prompt token.
    prompt_logprobs: Mapping[str, LogprobRows] = field(default_factory=dict)


@runtime_checkable
class StepHandle(Protocol):
    """A step under way; returned by ``execute_model``."""

    def result(self, timeout_s: float | None = None) -> ModelRunnerOutput:
        """Wait for the step and return its output; the same object on every call.

        Raises `StepTimeout` after ``timeout_s`` seconds, `OutOfDeviceMemory` or `DeviceLost` when the
        step failed. The KV cache of the step's requests is undefined after a failure.
        """
        ...


class FinishedStep:
    """The handle of a backend that computes before ``execute_model`` returns."""

    __slots__ = ("_output",)

    def __init__(self, output: ModelRunnerOutput) -> None:
        self._output = output

    def result(self, timeout_s: float | None = None) -> ModelRunnerOutput:
        """Return the output at once."""
        return self._output
