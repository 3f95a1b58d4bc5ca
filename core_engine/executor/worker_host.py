"""WorkerHost: a worker and its model runner, built and wired in the process that runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core_engine.errors import ContractError
from core_engine.extensions.loading import load_extension
from core_engine.worker.context import RunnerContext
from core_engine.worker.facade import ModelRunnerFacade, WorkerFacade
from core_engine.worker.hook_manager import runner_hooks, worker_hooks

if TYPE_CHECKING:
    from core_engine.backends.backend import Backend
    from core_engine.backends.installed import InstalledPlugin
    from core_engine.worker.context import WorkerContext
    from core_engine.worker.reports import DeviceReport

__all__ = ["WorkerHost"]


class WorkerHost(WorkerFacade):
    """The façade of a worker that it builds itself; the runner follows once the device is open.

    ``extensions`` wrap both roles, the first one outermost. Raises `ContractError` for a worker or
    runner that breaks the API, `BackendLoadError` when a plugin or an extension does not load.
    """

    def __init__(
        self, backend: Backend, context: WorkerContext, extensions: tuple[InstalledPlugin, ...] = ()
    ) -> None:
        # Here, not at the top: parents of worker processes need no torch. The first import comes first.
        import core_engine._torch_import  # noqa: F401
        from core_engine.worker.worker import WorkerBase

        self._backend = backend
        self._context = context
        self._extensions = {entry.name: load_extension(entry, context) for entry in extensions}
        worker = backend.create_worker(context)
        if not isinstance(worker, WorkerBase):
            raise ContractError(
                f"{backend}: create_worker returned a {type(worker).__qualname__}, which does not derive "
                "from core_engine.plugin.runtime.WorkerBase"
            )
        self._worker = worker
        super().__init__(worker_hooks(worker, self._extensions))

    def init_device(self) -> DeviceReport:
        """Open the device, then build the model runner for it and hand it to the worker."""
        report = super().init_device()
        if self._worker.device is None:
            raise ContractError(f"{self._backend}: init_device did not set the worker's `device`")
        runner = self._backend.create_model_runner(
            RunnerContext(worker=self._context, capabilities=report.capabilities, device=self._worker.device)
        )
        # The worker reaches the runner through the façade only, so that extensions always fire.
        self._worker.attach_model_runner(ModelRunnerFacade(runner_hooks(runner, self._extensions)))
        return report
