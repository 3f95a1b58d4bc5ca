"""WorkerLog: what a worker process prints, on its way to its parent's stderr."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections import deque
from contextlib import suppress

__all__ = ["WorkerLog"]

#: Lines that are kept to be shown when the worker has ended.
_KEPT_LINES = 20
_READ_BYTES = 1 << 16
#: A progress bar ends each of its states with a carriage return, or begins the next with one.
_AFTER_A_LINE = re.compile(rb"(?<=[\r\n])")


class WorkerLog:
    """A thread that copies ``descriptor`` to stderr until its end, as lines and states of bars come.

    With a ``place`` ("rank 1 of 2") that stands before each of them. A stderr that is closed or takes no
    more does not hold up the worker.
    """

    def __init__(self, descriptor: int, place: str) -> None:
        self._descriptor = descriptor
        self._mark = f"[{place}] ".encode() if place else b""
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._thread = threading.Thread(target=self._copy, name="worker-log", daemon=True)
        self._thread.start()

    def last_lines(self) -> tuple[str, ...]:
        """Return the last lines so far, without the states of bars."""
        return tuple(self._lines)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the output; False when it did not come in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _copy(self) -> None:
        rest = b""
        while data := os.read(self._descriptor, _READ_BYTES):
            *parts, rest = _AFTER_A_LINE.split(rest + data)
            for part in parts:
                self._pass_on(part)
        if rest:
            self._pass_on(rest)

    def _pass_on(self, part: bytes) -> None:
        text = part.strip(b"\r\n")
        if text and not part.endswith(b"\r"):
            self._lines.append(text.decode(errors="replace").rstrip())
        mark = self._mark if text else b""
        # Blanks wipe out a bar, and with it the mark before it.
        before = b" " * len(mark) if not text.strip() else mark
        # Not sys.stderr: its lock must not be held by this thread while the interpreter ends.
        if sys.__stderr__ is None:  # closed before this process began: 2 is another file's number now
            return
        with suppress(OSError):
            os.write(2, before + part)
