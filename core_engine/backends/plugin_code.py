"""What surrounds a call into a plugin's code: where its prints go, how its errors are told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, redirect_stdout

from core_engine._text import one_line

__all__ = ["describe_failure", "describe_value", "prints_to_stderr"]


def prints_to_stderr() -> AbstractContextManager[object]:
    """Send what is printed inside to stderr: stdout holds a command's results and nothing else."""
    return redirect_stdout(sys.stderr)


def describe_failure(failure: BaseException) -> str:
    """Return type and message of what a plugin raised, in one line."""
    return f"{type(failure).__name__}: {_text(failure, str)}"


def describe_value(value: object) -> str:
    """Return a value that a plugin gave, with its type, in one line."""
    return f"{_text(value, repr)} of type {type(value).__name__}"


def _text(value: object, convert: Callable[[object], str]) -> str:
    """Convert with the plugin's own ``__str__`` or ``__repr__``, which may fail as well."""
    try:
        return one_line(convert(value))
    except KeyboardInterrupt:
        raise
    except BaseException as failure:
        return f"(its text is not to be had: {type(failure).__name__})"
