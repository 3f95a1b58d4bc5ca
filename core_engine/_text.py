"""Small conversions of text: switches written as words, messages on one line."""

from __future__ import annotations

__all__ = ["error_line", "one_line", "parse_bool"]

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def parse_bool(text: str) -> bool:
    """Read a switch. Raises `ValueError` that lists what is possible."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(f"{text!r} is neither of {', '.join(sorted(_TRUE))} nor of {', '.join(sorted(_FALSE))}")


def one_line(value: object) -> str:
    """Return ``str(value)`` with every run of white space as one blank."""
    return " ".join(str(value).split())


def error_line(error: BaseException, limit: int = 500) -> str:
    """Return what another library's error says on one line of at most ``limit`` characters.

    All its lines count, since the reason often stands in the last; an error without a text is named by
    its type.
    """
    # str() of a KeyError is the quoted form of its text.
    told = error.args[0] if isinstance(error, KeyError) and len(error.args) == 1 else error
    line = one_line(told) or type(error).__name__
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
