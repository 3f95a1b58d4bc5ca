"""Rendezvous: the file through which the ranks of one engine find each other."""

from __future__ import annotations

import os
import tempfile
import weakref
from contextlib import suppress

from core_engine.errors import EngineError

__all__ = ["Rendezvous", "remove_rendezvous"]


class Rendezvous:
    """A file name in a new folder that nobody else may enter; the ranks make the file.

    Both are removed by ``remove``, or when this process ends without it; should it be killed, by the workers.
    Raises `EngineError` where no folder can be made.
    """

    def __init__(self) -> None:
        try:
            folder = tempfile.mkdtemp(prefix="core-engine-ranks-")
        except OSError as error:
            raise EngineError(
                f"the ranks have no folder to meet in: {error}; set TMPDIR to a folder that can be written"
            ) from error
        self.file = os.path.join(folder, "ranks")
        self._remove = weakref.finalize(self, _remove_if_own, self.file, os.getpid())

    def remove(self) -> None:
        """Remove file and folder; a second call does nothing."""
        self._remove()


def remove_rendezvous(file: str) -> None:
    """Remove the file and its folder, as far as they are there."""
    with suppress(OSError):
        os.unlink(file)
    with suppress(OSError):
        os.rmdir(os.path.dirname(file))


def _remove_if_own(file: str, pid: int) -> None:
    # A process that was forked off inherits the finalizer, but not the folder.
    if os.getpid() == pid:
        remove_rendezvous(file)
