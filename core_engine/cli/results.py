"""Standard output as the place of a command's results, and the error where they cannot be written."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import IO, Any, cast

from core_engine.errors import ConfigError

__all__ = ["ResultsLost", "results_on_stdout"]

#: Name of the error handler that writes ``\\uXXXX`` (as JSON does) for what the encoding lacks.
_ESCAPE = "core-engine-escape"


class ResultsLost(Exception):
    """Stdout cannot be written; the cause is the `OSError`."""


@contextmanager
def results_on_stdout() -> Iterator[None]:
    """Make stdout fit for results inside, and flush it at the end.

    Characters that its encoding lacks are written as ``\\uXXXX``, from here on.

    Raises `ConfigError` when stdout is closed, `ResultsLost` when a write to it fails; the stream then
    drops what it still holds.
    """
    stream = cast("IO[str] | None", sys.stdout)
    if stream is None:
        raise ConfigError("stdout is closed; send the results to /dev/null if they are not wanted")
    codecs.register_error(_ESCAPE, _escape)
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors=_ESCAPE)
    results = _Results(stream)
    with redirect_stdout(cast("IO[str]", results)):
        try:
            yield
        except SystemExit:  # after --help and --version
            results.flush()
            raise
        results.flush()


class _Results:
    """A stream whose failures to write are told apart from every other `OSError`."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

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
        # The interpreter flushes stdout once more at exit; give it a place to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        return ResultsLost()


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs), error.end
