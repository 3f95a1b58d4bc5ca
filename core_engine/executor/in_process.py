"""InProcessExecutor: the worker in the caller's own process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from core_engine.executor.base import Executor
from core_engine.executor.worker_host import WorkerHost

if TYPE_CHECKING:
    from core_engine.backends.backend import Backend
    from core_engine.backends.installed import InstalledPlugin
    from core_engine.worker.context import WorkerContext

__all__ = ["InProcessExecutor"]


class InProcessExecutor(WorkerHost, Executor):
    """Calls the worker directly; no message is encoded and ``get_model`` works.

    The variables of the worker's plan are set in this process and stay set: the device's software
    may read them at any later time.
    """

    def __init__(
        self, backend: Backend, context: WorkerContext, extensions: tuple[InstalledPlugin, ...] = ()
    ) -> None:
        os.environ.update(context.plan.environment)
        super().__init__(backend, context, extensions)
