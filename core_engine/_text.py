"""Small conversions of text: switches written as words, messages on one line."""

from __future__ import annotations

__all__ = ["one_line", "parse_bool"]

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
