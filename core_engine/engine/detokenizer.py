"""Token ids to text, token by token, without ever showing half a character.

The text that a token adds is the difference between decoding a short window of tokens with and
without it: a token's text depends on its neighbours (a leading blank, bytes of one character). The
window holds a few tokens however long the output is, so a token costs the same at any length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Detokenizer", "TokenDecoder"]

#: What decoders put in place of bytes that are not, or not yet, UTF-8.
REPLACEMENT = "\ufffd"
#: A character whose last byte is still missing has at most three bytes, which show as one to three of these.
_MAX_INCOMPLETE = 3
#: The window grows to this many tokens …
_MAX_WINDOW = 12
#: … and is then cut back to its last ones, enough to hold an incomplete character.
_MIN_WINDOW = 4


class TokenDecoder:
    """Decodes short runs of ids with a tokenizer of transformers, fast or slow."""

    def __init__(self, tokenizer: Any) -> None:
        added: dict[int, Any] = tokenizer.added_tokens_decoder
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._decode: Callable[[list[int]], str]
        self._token: Callable[[int], str | None]
        if tokenizer.is_fast:
            rust = tokenizer.backend_tokenizer
            self._decode = lambda ids: rust.decode(ids, skip_special_tokens=False)
            self._token = rust.id_to_token
        else:
            self._decode = lambda ids: tokenizer.decode(
                ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
            self._token = lambda i: tokenizer.convert_ids_to_tokens(i) if i < len(tokenizer) else None

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of ``token_ids``, all of them known, special tokens included."""
        return self._decode(token_ids)

    def knows(self, token_id: int) -> bool:
        """Say whether ``token_id`` is a token: a model may have more ids than its tokenizer."""
        return 0 <= token_id < 2**31 and self._token(token_id) is not None


class Detokenizer:
    """The growing text of one sequence.

    ``prompt_token_ids`` give the first tokens their context and never show in the text, not even the
    first bytes of a character that the prompt leaves open.
    """

    def __init__(
        self, decoder: TokenDecoder, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool
    ) -> None:
        self._decoder = decoder
        self._skipped = decoder.special_ids if skip_special_tokens else frozenset[int]()
        self._window = [i for i in prompt_token_ids[-2 * _MIN_WINDOW :] if decoder.knows(i)]
        self._text = decoder.decode(self._window)
        #: The part of the window's text that is out; the rest is held back.
        self._shown = self._text

    def push(self, token_id: int) -> str:
        """Take the next token and return the text that is certain now; it may be empty.

        An id that the tokenizer does not know adds no text.
        """
        if token_id in self._skipped or not self._decoder.knows(token_id):
            return ""
        delta = ""
        self._window.append(token_id)
        text = self._decoder.decode(self._window)
        if not text.startswith(self._shown):
            # The token changed the text before it: it ended a character that the prompt left open, or
            # this decoder judges a run of byte tokens as a whole. That text is out already (or was never
            # to be shown), so the token starts a new window.
            delta = self.flush()
            self._window = [token_id]
            self._shown = ""
            text = self._decoder.decode(self._window)
        end = max(len(text) - min(_open_length(text), _MAX_INCOMPLETE), len(self._shown))
        delta += text[len(self._shown) : end]
        self._text, self._shown = text, text[:end]
        return delta + self._narrow() if len(self._window) > _MAX_WINDOW else delta

    def flush(self) -> str:
        """Return the text still held back, at the end of the sequence; the next call returns nothing."""
        held = self._text[len(self._shown) :]
        self._shown = self._text
        return held

    def _narrow(self) -> str:
        """Cut the window back and return what it could hold back no longer."""
        held = self._text[len(self._shown) :]
        self._window = self._window[-_MIN_WINDOW:]
        self._text = self._decoder.decode(self._window)
        # Bytes that lost their neighbours may group differently; the last ones, which matter, do not.
        num_held = min(len(held), _open_length(self._text))
        self._shown = self._text[: len(self._text) - num_held]
        return held[: len(held) - num_held]


def _open_length(text: str) -> int:
    return len(text) - len(text.rstrip(REPLACEMENT))
