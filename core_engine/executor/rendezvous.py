"""Rendezvous: the file through which the ranks of one engine find each other."""

from __future__ import annotations

import os
import tempfile
import weakref
from contextlib import suppress

__all__ = ["Rendezvous", "remove_rendezvous"]


class Rendezvous:
    """A file name in a new folder that nobody else may enter; the ranks make the file.

    Both are removed by ``remove``, or when this process ends without it; should it be killed, by the workers.
    """

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="core-engine-ranks-")
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
