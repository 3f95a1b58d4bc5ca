"""ParentWatch: a worker process does not outlive its parent, nor do the programs that it started."""

from __future__ import annotations

import os
import select
import signal
import threading
import time

from core_engine.executor.rendezvous import remove_rendezvous

__all__ = ["ParentWatch"]

#: How long a call in progress may go on after the parent has gone.
_GRACE_S = 5.0
#: How often to look who the parent is, should a process that it forked off hold the socket open.
_LOOK_MS = 1000


class ParentWatch:
    """A thread that ends this process once its parent has gone, whatever the process is doing then.

    ``descriptor`` is a socket to the parent, whose process id is ``parent``: it may be gone by now. A process
    that leads a process group, as workers do, takes the group with it.
    """

    def __init__(self, descriptor: int, parent: int) -> None:
        #: Where the ranks meet; removed at the end. Empty for none.
        self.rendezvous = ""
        self._descriptor = descriptor
        self._parent = parent
        threading.Thread(target=self._watch, name="parent-watch", daemon=True).start()

    def leave(self) -> None:
        """Clean up where the process ends by itself: end the programs that it started."""
        self._remove_rendezvous()
        if os.getpgrp() == os.getpid():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(0, signal.SIGTERM)

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self._descriptor, 0)
        while not poller.poll(_LOOK_MS) and os.getppid() == self._parent:
            pass
        time.sleep(_GRACE_S)
        self._remove_rendezvous()
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    def _remove_rendezvous(self) -> None:
        if self.rendezvous:
            remove_rendezvous(self.rendezvous)
