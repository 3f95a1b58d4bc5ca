"""WorkerHost: a worker and its model runner, built and wired in the process that runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_origin

from core_engine.backends.plugin_code import describe_failure, describe_value
from core_engine.errors import ContractError, CoreEngineError, EngineError
from core_engine.executor.codec import WORKER_CALLS
from core_engine.extensions.loading import load_extension
from core_engine.hookspecs.worker import WorkerApi
from core_engine.plugin._markers import WORKER_PROJECT
from core_engine.worker.context import RunnerContext
from core_engine.worker.facade import ModelRunnerFacade, WorkerFacade
from core_engine.worker.hook_manager import HookManager, runner_hooks

if TYPE_CHECKING:
    from core_engine.backends.backend import Backend
    from core_engine.backends.installed import InstalledPlugin
    from core_engine.worker.context import WorkerContext
    from core_engine.worker.reports import DeviceReport

__all__ = ["WorkerHost"]


class _WorkerHooks(HookManager):
    """The worker's hooks, which may run anybody's code; see `WorkerHost`."""

    def call(self, hook: str, **arguments: Any) -> Any:
        """Call ``hook``; foreign exceptions become `EngineError`, wrong results `ContractError`.

        Both name the hook and the extensions that wrap it.
        """
        try:
            result = super().call(hook, **arguments)
        except (CoreEngineError, KeyboardInterrupt):
            raise
        except BaseException as failure:
            raise EngineError(f"{self._subject(hook)} raised {describe_failure(failure)}") from failure
        if not _fits(hook, result):
            raise ContractError(
                f"{self._subject(hook)} returned {describe_value(result)}; it must return what "
                f"WorkerApi.{hook} says"
            )
        return result

    def _subject(self, hook: str) -> str:
        wrappers = [i.plugin_name for i in getattr(self.hook, hook).get_hookimpls() if i.wrapper]
        wrapped = f", wrapped by {', '.join(wrappers)}," if wrappers else ""
        return f"the worker's {hook}{wrapped}"


def _fits(hook: str, result: object) -> bool:
    """Say whether ``result`` is of the type that can cross to another process, whether it does or not."""
    if hook == "execute_model":
        return callable(getattr(result, "result", None))
    spec = WORKER_CALLS.get(hook)
    return spec is None or isinstance(result, get_origin(spec.result) or spec.result)


class WorkerHost(WorkerFacade):
    """The façade of a worker that it builds itself; the runner follows once the device is open.

    ``extensions`` wrap both roles, the first one outermost. Raises `ContractError` for a worker or
    runner that breaks the API, `BackendLoadError` when a plugin or an extension does not load. Whatever a
    hook raises later, `KeyboardInterrupt` excepted, is an error of core-engine's own: another exception of
    the plugin's becomes `EngineError`.
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
        super().__init__(_WorkerHooks(WORKER_PROJECT, WorkerApi, worker, self._extensions))

    def init_device(self) -> DeviceReport:
        """Open the device, then build the model runner for it and hand it to the worker."""
        report = super().init_device()
        if self._worker.device is None:
            raise ContractError(f"{self._backend}: init_device did not set the worker's `device`")
        runner = self._backend.create_model_runner(
            RunnerContext(
                worker=self._context,
                capabilities=report.capabilities,
                device=self._worker.device,
                communicator=self._worker.communicator,
            )
        )
        # The worker reaches the runner through the façade only, so that extensions always fire.
        self._worker.attach_model_runner(ModelRunnerFacade(runner_hooks(runner, self._extensions)))
        return report
