"""The place of a command's results: the process's stdout, kept from everything else that prints."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import TextIOWrapper
from typing import TextIO, cast

from core_engine.errors import ConfigError

__all__ = ["EXIT_ANSWER_FAILED", "Results", "ResultsLost", "private_results"]

#: Exit code of a command that printed its answers, of which at least one ended with an error.
EXIT_ANSWER_FAILED = 1
_STDOUT = 1
#: Name of the error handler that writes ``\\uXXXX`` (as JSON does) for what the encoding lacks.
_ESCAPE = "core-engine-escape"


class ResultsLost(Exception):
    """Results cannot be written; the cause is the `OSError`."""


class Results:
    """A stream for results, whose failures to write are told apart from every other `OSError`.

    ``print(..., file=results)`` works. Raises `ResultsLost`; what it still holds is dropped then.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write ``text``."""
        try:
            return self._stream.write(text)
        except OSError as error:
            raise self._lost() from error

    def flush(self) -> None:
        """Hand on what was written."""
        try:
            self._stream.flush()
        except OSError as error:
            raise self._lost() from error

    def _lost(self) -> ResultsLost:
        # The interpreter flushes the stream once more at exit; give it a place to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        return ResultsLost()


@contextmanager
def private_results(*, until_exit: bool = False) -> Iterator[Results]:
    """Give stdout to the results alone, and flush them at the end.

    All else that is printed inside goes to stderr: by Python code (backends, extensions, libraries),
    by C libraries and by child processes. Afterwards stdout is as before; with ``until_exit`` it stays
    the results' place until the process ends, so that threads and exit handlers cannot add to them.
    Characters that the encoding lacks are written as ``\\uXXXX``.

    Raises `ConfigError` when stdout is closed, `ResultsLost` when the results cannot be written.
    """
    stdout = cast("TextIO | None", sys.stdout)
    if stdout is None:
        raise ConfigError("stdout is closed; send the results to /dev/null if they are not wanted")
    codecs.register_error(_ESCAPE, _escape)
    if _descriptor(stdout) == _STDOUT:
        scope = _own_descriptor(stdout, until_exit=until_exit)
    else:  # a stream that the caller put in stdout's place
        scope = _own_name(stdout)
    with scope as results:
        try:
            yield results
        except SystemExit:  # after --help and --version
            results.flush()
            raise
        results.flush()


@contextmanager
def _own_descriptor(stdout: TextIO, *, until_exit: bool) -> Iterator[Results]:
    """Give a duplicate of the descriptor to the results, and stderr's to whoever prints."""
    _flush_quietly(stdout)
    private = os.dup(_STDOUT)
    stream = open(private, "w", encoding=stdout.encoding, errors=_ESCAPE, closefd=False)  # noqa: SIM115
    stderr = _descriptor(sys.stderr)
    os.dup2(os.open(os.devnull, os.O_WRONLY) if stderr is None else stderr, _STDOUT)
    try:
        yield Results(stream)
    finally:
        _flush_quietly(stream)  # what a command that failed had still printed
        if not until_exit:
            _flush_quietly(stdout)
            os.dup2(private, _STDOUT)
            os.close(private)


@contextmanager
def _own_name(stdout: TextIO) -> Iterator[Results]:
    """Give the stream to the results, and stderr to whoever prints to ``sys.stdout``."""
    if isinstance(stdout, TextIOWrapper):
        stdout.reconfigure(errors=_ESCAPE)
    with redirect_stdout(sys.stderr):
        yield Results(stdout)


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError):  # closed, or in memory only
        return None


def _flush_quietly(stream: TextIO) -> None:
    try:
        stream.flush()
    except (OSError, ValueError):  # what others printed is no result
        return


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs), error.end
