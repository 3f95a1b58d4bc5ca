"""When a request ends by its tokens, and which of a step's tokens still belong to it."""

from __future__ import annotations

from dataclasses import dataclass

from core_engine.scheduler.request import RequestState
from core_engine.worker.output import LogprobRows

__all__ = ["Stop", "append_tokens", "slice_logprobs"]

_NO_TOKEN = (
    "the model gave no token: its logits are not numbers, or bias, bad_words and min_tokens forbid every one"
)


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a request ended; see `core_engine.engine.messages.CoreOutput`."""

    finish_reason: str
    #: How many of the new tokens belong to the output, the one that ended it included.
    num_kept: int
    stop_reason: int | None = None
    message: str | None = None


def append_tokens(request: RequestState, new_ids: tuple[int, ...]) -> Stop | None:
    """Append sampled ids to ``request.tokens`` up to the one that ends it; None while it goes on.

    Looked at token by token: a stop token counts from the ``min_tokens``-th token on and wins over
    the length that is reached with the same token. A negative id says that the model had no token to
    give (see `Sampler`).
    """
    tokens = request.tokens
    for num_kept, token in enumerate(new_ids, 1):
        if token < 0:
            return Stop("error", num_kept - 1, message=_NO_TOKEN)
        tokens.append(token)
        length = len(tokens)
        if token in request.stop_ids and length >= request.min_total_tokens:
            is_eos = token in request.request.eos_token_ids
            return Stop("stop", num_kept, None if is_eos else token)
        if length >= request.max_total_tokens:
            return Stop("length", num_kept, message=_pool_message(request))
    return None


def slice_logprobs(rows: LogprobRows, start: int, stop: int, num_logprobs: int) -> LogprobRows:
    """Return rows ``start`` to ``stop`` with the columns that one request asked for."""
    columns = slice(0, num_logprobs + 1)
    return LogprobRows(
        token_ids=rows.token_ids[start:stop, columns],
        logprobs=rows.logprobs[start:stop, columns],
        ranks=rows.ranks[start:stop],
    )


def _pool_message(request: RequestState) -> str | None:
    if not request.cut_by_pool:
        return None
    return (
        f"cut short at {request.max_total_tokens} tokens: the KV cache holds "
        f"{request.max_total_tokens - 1}; raise kv_cache_bytes for longer outputs"
    )
