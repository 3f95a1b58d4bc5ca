"""From a sequence's token ids to the text that its reader sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from core_engine.engine.detokenizer import Detokenizer, TokenDecoder
from core_engine.engine.stop_strings import StopStrings
from core_engine.sampling.params import SamplingParams

__all__ = ["TextDelta", "TextStream"]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What some tokens added to a sequence."""

    #: Text to append; whole characters, free of stop strings unless they were asked for.
    text: str
    #: How many of the given tokens belong to the output: all, or those up to the end of the stop string.
    num_tokens: int
    #: The stop string that ended the sequence.
    stop: str | None = None


class TextStream:
    """The text of one sequence, fed with the tokens of each step.

    ``tokenizer`` is transformers' own object.
    """

    def __init__(self, tokenizer: Any, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        self._detokenizer = Detokenizer(
            TokenDecoder(tokenizer), prompt_token_ids, skip_special_tokens=params.skip_special_tokens
        )
        self._stops = StopStrings(params.stop, include_in_output=params.include_stop_str_in_output)
        self._include_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._num_tokens = 0

    def append(
        self, token_ids: Sequence[int], *, finished: bool = False, ends_with_stop_token: bool = False
    ) -> TextDelta:
        """Take the next tokens and return what they add.

        ``finished`` says that no more will come: everything held back is returned.
        ``ends_with_stop_token`` says that the last token is an end-of-sequence or stop id; it
        counts as a token, and as text only under ``include_stop_str_in_output``. When the delta
        names a stop string the sequence has ended, whatever the reason the engine core gave; the
        tokens after ``num_tokens`` and their log-probabilities do not belong to it. A stop string counts
        once ``min_tokens`` tokens are there.
        """
        parts: list[str] = []
        for index, token_id in enumerate(token_ids):
            self._num_tokens += 1
            is_stop_token = ends_with_stop_token and index == len(token_ids) - 1
            if is_stop_token and not self._include_stop:
                continue
            text = self._detokenizer.push(token_id)
            if text:
                shown, stop = self._stops.push(text, armed=self._num_tokens >= self._min_tokens)
                parts.append(shown)
                if stop is not None:
                    return TextDelta("".join(parts), index + 1, stop)
        if finished:
            shown, stop = self._stops.push(
                self._detokenizer.flush(), armed=self._num_tokens >= self._min_tokens
            )
            parts.append(shown)
            if stop is not None:
                return TextDelta("".join(parts), len(token_ids), stop)
            parts.append(self._stops.flush())
        return TextDelta("".join(parts), len(token_ids))
