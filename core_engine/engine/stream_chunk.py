"""What `LLM.stream` yields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from core_engine.engine.outputs import Logprob

__all__ = ["StreamChunk"]


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """What one step added to one sequence of a request.

    The texts of a sequence's chunks join to its whole text; the last chunk has a ``finish_reason``
    and may have no text.
    """

    request_id: str
    #: Which of the n sequences.
    index: int
    text: str
    token_ids: list[int]
    logprobs: list[Mapping[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    #: What went wrong, on one line, when ``finish_reason`` is "error".
    error: str | None = None
