"""The message from the scheduler to the model runner: what one step computes.

It holds numbers, strings and numpy arrays only, never a torch object and never a token that the
runner sampled itself: the runner keeps those, so that a later step can be scheduled before an
earlier one has ended.
"""

from __future__ import annotations

from dataclasses import dataclass

from core_engine._ragged import IntArray, Ragged
from core_engine.sampling.params import SamplingParams

__all__ = ["NewRequest", "SchedulerOutput"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRequest:
    """What the runner must know of a request, sent once, with the first step that computes it."""

    request_id: str
    #: int32 ``[num_prompt_tokens]``
    prompt_token_ids: IntArray
    sampling_params: SamplingParams
    #: The seed of the request's noise, drawn at admission where the user gave none; 0 ≤ seed < 2**64.
    seed: int
    #: Which of the n sequences of one prompt this is, from 0; the stream of its noise.
    stream: int = 0
    #: Token ids that end the request by themselves (the model's end-of-sequence ids).
    eos_token_ids: tuple[int, ...] = ()
    #: Token sequences that must not appear (``bad_words``, tokenised).
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    #: The LoRA adapter, by the number of `ModelRunnerApi.add_lora`; 0 for none.
    lora_id: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerOutput:
    """One step, as columns over the step's requests (row ``i`` is ``request_ids[i]``).

    A request samples in this step when ``num_computed_tokens + num_scheduled_tokens`` reaches the
    number of its tokens that the runner knows. Drafts are tokens of the step too: a request with k of
    them computes its last known token and the drafts after it, 1 + k tokens, and samples after each. Its
    row of the output are the sampled tokens up to and including the first that differs from the draft
    beside it; the next step goes on at the last of them. Requests and drafts of a step together are no
    more than ``max_num_seqs``. The runner applies the message in this order: finish,
    preempt, add, append or replace blocks, compute.

    A step may schedule no token at all and still carry ids in ``finished_request_ids`` or
    ``preempted_request_ids``; the runner must be told of it. After a step that failed the next one tells
    again who ended and who was preempted: a runner ignores ids that it does not know (any more).
    """

    #: Counts from 0; outputs come back in this order.
    step_id: int
    request_ids: tuple[str, ...]
    #: int32 ``[num_reqs]``: tokens of each request to compute now, at least 1.
    num_scheduled_tokens: IntArray
    #: int32 ``[num_reqs]``: tokens whose keys and values stand in the cache before this step.
    num_computed_tokens: IntArray
    #: One per KV-cache group, row ``i`` the blocks to append to the table of ``request_ids[i]``; for
    #: new and resumed requests the whole table, in which a group's leading entries may be the null block
    #: (0): no layer of it reads those positions. A block that a group does not need any more may later
    #: belong to another request, though it still stands in the runner's table.
    new_block_ids: tuple[Ragged, ...]
    #: Requests of this step that the runner has not seen yet.
    new_requests: tuple[NewRequest, ...] = ()
    #: Requests of this step that were preempted before; the runner still knows their tokens.
    resumed_request_ids: tuple[str, ...] = ()
    #: Requests that lost their blocks; the runner keeps their tokens, their rows are free.
    preempted_request_ids: tuple[str, ...] = ()
    #: Requests that have ended; the runner forgets them, and their ids may be used again.
    finished_request_ids: tuple[str, ...] = ()
    #: Row ``i``: draft ids to verify after the known tokens of ``request_ids[i]``, counted in
    #: ``num_scheduled_tokens``; None when no request has any.
    draft_token_ids: Ragged | None = None

    @property
    def total_num_tokens(self) -> int:
        """Tokens computed in this step, without padding."""
        return int(self.num_scheduled_tokens.sum())
