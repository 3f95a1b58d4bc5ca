"""RequestState: what the scheduler knows of one request."""

from __future__ import annotations

from array import array
from enum import Enum
from typing import TYPE_CHECKING

from core_engine.errors import InvalidRequest

if TYPE_CHECKING:
    from core_engine.engine.messages import CoreRequest
    from core_engine.kv_cache.manager import BlockTable
    from core_engine.scheduler.drafter import Drafter
    from core_engine.scheduler.policies import OrderKey

__all__ = ["RequestState", "RequestStatus", "check_prompt"]


class RequestStatus(Enum):
    """Where a request stands; PREEMPTED ones wait again, and the runner knows their tokens."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class RequestState:
    """One request from ``add`` to its end.

    Numbers that change every step (tokens computed, steps in flight, epoch) stand in
    `core_engine.scheduler.columns.RequestColumns` at ``slot``, which the request holds from its
    admission until it has left the running set and its last step in flight has come back.
    """

    __slots__ = (
        "blocks",
        "cut_by_pool",
        "drafter",
        "max_total_tokens",
        "min_total_tokens",
        "num_cached_tokens",
        "num_prompt_tokens",
        "order",
        "request",
        "request_id",
        "slot",
        "status",
        "stop_ids",
        "tokens",
    )

    def __init__(
        self,
        request: CoreRequest,
        order: OrderKey,
        blocks: BlockTable,
        *,
        max_model_len: int,
        pool_tokens: int,
    ) -> None:
        self.request = request
        self.request_id = request.request_id
        self.order = order
        self.blocks = blocks
        self.status = RequestStatus.WAITING
        self.slot = -1
        #: Prompt and output as far as it is known here; the runner may be some sampled tokens ahead.
        self.tokens = array("i", request.prompt_token_ids.tolist())
        self.num_prompt_tokens = len(self.tokens)
        #: Prompt tokens that the prefix cache spared at the first admission.
        self.num_cached_tokens = 0
        #: Stop tokens do not count before the request has this many tokens.
        self.min_total_tokens = self.num_prompt_tokens + request.params.min_tokens
        #: The request ends when it has this many tokens. The last one needs no place in the cache.
        longest = min(self.num_prompt_tokens + request.max_tokens, max_model_len)
        self.max_total_tokens = min(longest, pool_tokens + 1)
        #: Whether it would end later if the pool were larger.
        self.cut_by_pool = self.max_total_tokens < longest
        self.stop_ids = frozenset((*request.eos_token_ids, *request.params.stop_token_ids))
        #: Guesses its next tokens; None where nothing is guessed.
        self.drafter: Drafter | None = None

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether every prompt position must be computed, whatever the cache holds."""
        return self.request.params.prompt_logprobs is not None


def check_prompt(request: CoreRequest, max_model_len: int, pool_tokens: int) -> None:
    """Raise `InvalidRequest`, with the numbers, for a prompt that can never run.

    ``pool_tokens`` is the longest sequence that the pool holds when it is alone.
    """
    length, longest = len(request.prompt_token_ids), max_model_len - 1
    if length == 0:
        raise InvalidRequest("the prompt is empty; give at least one token", "prompt")
    if length > longest:
        raise InvalidRequest(
            f"the prompt has {length} tokens; max_model_len {max_model_len} leaves room for {longest} "
            "and one output token; shorten the prompt or raise max_model_len",
            "prompt",
        )
    if length > pool_tokens:
        raise InvalidRequest(
            f"the prompt has {length} tokens, but the whole KV cache holds {pool_tokens}; "
            "shorten the prompt or raise kv_cache_bytes",
            "prompt",
        )
