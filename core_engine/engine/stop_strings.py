"""Stop strings: found across the borders of tokens, cut exactly, never shown in part."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopStrings"]


class _Matcher:
    """Follows one stop string through a text, one character at a time.

    Algorithm: Knuth, Morris, Pratt, "Fast pattern matching in strings", SIAM J. Comput. 6 (1977).
    """

    __slots__ = ("_borders", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        #: How many characters of ``text`` the end of what was read matches; less than all of them.
        self.matched = 0
        # borders[i]: length of the longest proper prefix of text[:i] that is also its suffix.
        self._borders = [0] * (len(text) + 1)
        border = 0
        for i in range(1, len(text)):
            while border and text[i] != text[border]:
                border = self._borders[border]
            border += text[i] == text[border]
            self._borders[i + 1] = border

    def read(self, character: str) -> bool:
        """Take the next character and say whether the stop string ends with it."""
        matched = self.matched
        while matched and self.text[matched] != character:
            matched = self._borders[matched]
        matched += self.text[matched] == character
        complete = matched == len(self.text)
        self.matched = self._borders[matched] if complete else matched
        return complete


class StopStrings:
    """Holds back what may become a stop string and finds the one that ends first.

    Of stop strings that end with the same character the longest counts.
    """

    def __init__(self, stops: Sequence[str], *, include_in_output: bool) -> None:
        self._matchers = [_Matcher(stop) for stop in stops]
        self._first_characters = frozenset(stop[0] for stop in stops)
        self._include = include_in_output
        self._held = ""

    def push(self, text: str, *, armed: bool = True) -> tuple[str, str | None]:
        """Take new text; return what may be shown now and the stop string that ended, if any.

        A stop string that ends while not ``armed`` is ordinary text. After a stop nothing is held.
        """
        if not self._held and self._first_characters.isdisjoint(text):
            return text, None
        pending = self._held + text
        for index, character in enumerate(text, start=len(self._held)):
            ended = [matcher.text for matcher in self._matchers if matcher.read(character)]
            if ended and armed:
                stop = max(ended, key=len)
                self._held = ""
                end = index + 1
                return pending[: end if self._include else end - len(stop)], stop
        num_held = max(matcher.matched for matcher in self._matchers)
        shown = pending[: len(pending) - num_held]
        self._held = pending[len(shown) :]
        return shown, None

    def flush(self) -> str:
        """Return the text held back, at the end of the sequence."""
        held, self._held = self._held, ""
        return held
