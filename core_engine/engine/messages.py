"""What passes between the text side (front end) and the token side (engine core).

Torch-free and msgpack-ready, so that the two may live in different processes.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from core_engine._ragged import IntArray
from core_engine.kv_cache.hashing import ExtraKey
from core_engine.sampling.params import SamplingParams
from core_engine.worker.output import LogprobRows

__all__ = ["CoreOutput", "CoreRequest"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CoreRequest:
    """One sequence to generate; a prompt with ``n`` > 1 becomes n of these with streams 0 … n − 1."""

    request_id: str
    #: int32 ``[num_prompt_tokens]``, at least one token.
    prompt_token_ids: IntArray
    params: SamplingParams
    #: The most tokens to generate, resolved: at least 1.
    max_tokens: int
    #: Drawn at admission where the user gave none.
    seed: int
    stream: int = 0
    #: End-of-sequence ids that count for this request; empty under ``ignore_eos``.
    eos_token_ids: tuple[int, ...] = ()
    #: Token sequences that must not appear (``bad_words``, tokenised).
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    #: Smaller runs first under a priority policy.
    priority: int = 0
    #: What else than tokens decides the content of its KV blocks (an adapter) or keeps them apart (a salt).
    extra_keys: tuple[ExtraKey, ...] = ()
    #: The LoRA adapter, by the number under which the runner knows it; 0 for none.
    lora_id: int = 0
    #: `time.monotonic` when the request came in.
    arrival_s: float = 0.0


class CoreOutput(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one step added to one sequence.

    One is made per running request and step, so it is a msgspec struct: a frozen dataclass takes
    2 µs to build, this one 0.1 µs.
    """

    request_id: str
    #: Sampled ids that belong to the output, a stop token included.
    new_token_ids: tuple[int, ...] = ()
    #: "stop", "length", "abort" or "error"; None while it goes on.
    finish_reason: str | None = None
    #: The stop token id that ended it; None for an end-of-sequence id.
    stop_reason: int | None = None
    #: One row per new token; None unless asked for.
    logprobs: LogprobRows | None = None
    #: Rows for the prompt positions computed in this step; None when there are none.
    prompt_logprobs: LogprobRows | None = None
    #: Prompt tokens taken from the prefix cache.
    num_cached_tokens: int = 0
    #: One line for a request that ended with "error" or was cut short by the pool's size.
    message: str | None = None
