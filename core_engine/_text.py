"""Small conversions of text: switches written as words, messages on one line, tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence

__all__ = ["aligned", "error_line", "mib", "one_line", "parse_bool"]

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


def mib(count: int) -> str:
    """Return bytes as ``"1,024.0 MiB"``."""
    return f"{count / (1 << 20):,.1f} MiB"


def aligned(rows: Sequence[Sequence[str]], *, numbers: Collection[int] = ()) -> list[str]:
    """Return a line for each row, columns two blanks apart; those in ``numbers`` stand at the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            f"{cell:>{width}}" if place in numbers else f"{cell:<{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
