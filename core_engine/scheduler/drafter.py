"""Drafter: guesses one request's next tokens, as many as its luck so far justifies."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from core_engine.scheduler.repeats import Repeats

if TYPE_CHECKING:
    from core_engine.sampling.params import SamplingParams

__all__ = ["Drafter", "can_draft"]

#: Drafts of a first try; one more row costs little, and most texts that repeat do so for longer.
_FIRST_TRY = 3
#: A request that misses all the time tries again after at most this many tokens.
_LONGEST_PAUSE = 63


def can_draft(params: SamplingParams) -> bool:
    """Say whether the tokens of a request may be chosen several at a time.

    Penalties, ``logit_bias`` and ``bad_words`` change a token's logits by the tokens before it; requests
    with them take one token a step.
    """
    return (
        params.repetition_penalty == 1
        and params.presence_penalty == 0
        and params.frequency_penalty == 0
        and not params.logit_bias
        and not params.bad_words
    )


class Drafter:
    """Proposes what followed the same tokens earlier, in prompt or output.

    A try *misses* when less than half of its drafts are accepted. After one that was accepted whole the
    next is about twice as long, after any other at most one longer than what was accepted. Each miss
    doubles the pause that follows, each other try halves it: a request whose tries mostly miss soon
    drafts once in `_LONGEST_PAUSE` tokens.
    """

    __slots__ = ("_length", "_longest", "_misses", "_repeats", "_resume_at", "_tokens")

    def __init__(self, tokens: array[int], longest: int) -> None:
        """Draft for ``tokens``, to which others append, up to ``longest`` at a time."""
        self._tokens = tokens
        self._longest = longest
        self._length = min(_FIRST_TRY, longest)
        self._misses = 0
        self._resume_at = 0
        self._repeats = Repeats(tokens)

    def propose(self, most: int) -> list[int]:
        """Return up to ``most`` tokens that may come next; often none."""
        tokens = self._tokens
        if len(tokens) < self._resume_at:
            return []
        length = min(self._length, most)
        place = self._repeats.find() if length > 0 else None
        if place is None:
            return []
        drafts = tokens[place : place + length].tolist()
        period = len(tokens) - place
        while len(drafts) < length:  # the repeat overlaps its own end: it goes round
            drafts.append(drafts[-period])
        return drafts

    def learn(self, num_drafts: int, num_accepted: int) -> None:
        """Take the result of a try before its tokens are appended."""
        if num_accepted == num_drafts:
            self._length = min(max(self._length, 2 * num_drafts + 1), self._longest)
        else:
            self._length = min(num_accepted + 1, self._longest)
        if 2 * num_accepted >= num_drafts:
            self._misses = max(0, self._misses - 1)
            return
        self._misses += 1
        pause = min((1 << self._misses - 1) - 1, _LONGEST_PAUSE)
        self._resume_at = len(self._tokens) + num_accepted + 1 + pause
