"""What the engine gives back, in the shapes that users of this field know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["CompletionOutput", "Logprob", "RequestMetrics", "RequestOutput"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """One candidate token: natural log-probability, rank (1 is the most likely) and its text."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """One generated sequence of a request."""

    index: int
    text: str
    token_ids: list[int]
    #: "stop", "length", "abort" or "error"; None while the sequence is still growing.
    finish_reason: str | None = None
    #: The stop string or stop token id that ended it, None for an end-of-sequence id.
    stop_reason: str | int | None = None
    #: For each output token: token id → `Logprob`; None unless asked for.
    logprobs: list[Mapping[int, Logprob]] | None = None
    cumulative_logprob: float | None = None
    #: What went wrong, on one line, when ``finish_reason`` is "error"; text and tokens before it stand.
    error: str | None = None


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request in seconds on the clock of `time.monotonic`."""

    arrival_s: float
    first_token_s: float | None = None
    last_token_s: float | None = None


@dataclass(slots=True)
class RequestOutput:
    """A request and what it has generated so far; ``finished`` says whether more will come."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    #: For each prompt token (None for the first): token id → `Logprob`; None unless asked for.
    prompt_logprobs: list[Mapping[int, Logprob] | None] | None = None
    #: Prompt tokens that came from the prefix cache.
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = field(default=None, repr=False)
