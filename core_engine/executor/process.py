"""ProcessExecutor: the worker in a process of its own."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from core_engine.backends.reference import encode_ref
from core_engine.errors import StepTimeout, UnsupportedFeature
from core_engine.executor.base import Executor
from core_engine.executor.codec import WORKER_CALLS, Start, decode, encode
from core_engine.executor.worker_process import WorkerProcess
from core_engine.worker.output import ModelRunnerOutput
from core_engine.worker.reports import Health

if TYPE_CHECKING:
    from core_engine.backends.installed import InstalledPlugin
    from core_engine.backends.reference import BackendRef
    from core_engine.kv_cache.specs import KVCacheConfig, KVCacheSpec
    from core_engine.lora.messages import LoRAAdapter, LoRAInfo
    from core_engine.scheduler.output import SchedulerOutput
    from core_engine.worker.context import WorkerContext
    from core_engine.worker.output import StepHandle
    from core_engine.worker.reports import CaptureReport, DeviceReport, LoadReport, MemoryBudget

__all__ = ["ProcessExecutor"]

#: How long a worker may take to release its device before its process is ended.
_SHUTDOWN_S = 30.0
#: How long a worker may take to say that it is well.
_HEALTH_S = 30.0


class RemoteStep:
    """A step that a worker process computes."""

    def __init__(self, future: Future[bytes], step_id: int) -> None:
        self._future = future
        self._step_id = step_id
        self._output: ModelRunnerOutput | None = None

    def result(self, timeout_s: float | None = None) -> ModelRunnerOutput:
        """Wait for the step; see `StepHandle.result`. Also raises `WorkerDied`."""
        if self._output is None:
            try:
                data = self._future.result(timeout_s)
            except TimeoutError:
                raise StepTimeout(f"step {self._step_id} did not finish within {timeout_s} s") from None
            self._output = decode(data, ModelRunnerOutput)
        return self._output


class ProcessExecutor(Executor):
    """Sends every call to one worker process, which loads exactly what ``ref`` and ``extensions`` name.

    An error in the worker is raised here under its own type, with the worker's traceback as a note;
    when the process ends on its own, calls raise `WorkerDied`, and `EngineClosed` after ``shutdown``.
    """

    def __init__(
        self, ref: BackendRef, context: WorkerContext, extensions: tuple[InstalledPlugin, ...] = ()
    ) -> None:
        start = Start(ref=encode_ref(ref), context=encode(context), extensions=extensions)
        self._worker = WorkerProcess(start, ref.plan.environment)
        self._closed = False

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._worker.pid

    def init_device(self) -> DeviceReport:
        """Load the plugin in the worker, open the device and build the model runner."""
        report: DeviceReport = self._call("init_device")
        return report

    def load_model(self) -> LoadReport:
        """See `WorkerApi.load_model`."""
        report: LoadReport = self._call("load_model")
        return report

    def get_model(self) -> Any:
        """Raise `UnsupportedFeature`: the model lives in the worker's process."""
        raise UnsupportedFeature(
            "get_model: the model lives in the worker's process and cannot leave it; set executor to "
            "'in-process' to reach it"
        )

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec | str]:
        """See `WorkerApi.get_kv_cache_spec`."""
        specs: dict[str, KVCacheSpec | str] = self._call("get_kv_cache_spec")
        return specs

    def determine_available_memory(self) -> MemoryBudget:
        """See `WorkerApi.determine_available_memory`."""
        budget: MemoryBudget = self._call("determine_available_memory")
        return budget

    def initialize_cache(self, kv_cache_config: KVCacheConfig) -> int:
        """See `WorkerApi.initialize_cache`."""
        num_bytes: int = self._call("initialize_cache", kv_cache_config)
        return num_bytes

    def compile_or_warm_up_model(self) -> CaptureReport:
        """See `WorkerApi.compile_or_warm_up_model`."""
        report: CaptureReport = self._call("compile_or_warm_up_model")
        return report

    def execute_model(self, scheduler_output: SchedulerOutput) -> StepHandle:
        """Send a step and return at once; several steps may be under way, answered in order."""
        future = self._worker.call("execute_model", encode(scheduler_output))
        return RemoteStep(future, scheduler_output.step_id)

    def add_lora(self, adapter: LoRAAdapter) -> LoRAInfo:
        """See `WorkerApi.add_lora`."""
        info: LoRAInfo = self._call("add_lora", adapter)
        return info

    def remove_lora(self, lora_id: int) -> bool:
        """See `WorkerApi.remove_lora`."""
        removed: bool = self._call("remove_lora", lora_id)
        return removed

    def list_loras(self) -> tuple[LoRAInfo, ...]:
        """See `WorkerApi.list_loras`."""
        infos: tuple[LoRAInfo, ...] = self._call("list_loras")
        return infos

    def profile(self, action: str) -> str:
        """See `WorkerApi.profile`."""
        path: str = self._call("profile", action)
        return path

    def check_health(self) -> Health:
        """Ask the worker, behind the steps under way; one that does not answer in 30 s is unhealthy.

        Raises `WorkerDied` when the process has ended.
        """
        try:
            return decode(self._worker.call("check_health").result(_HEALTH_S), Health)
        except TimeoutError:
            return Health(healthy=False, detail=f"the worker did not answer within {_HEALTH_S:g} s")

    def shutdown(self) -> bool:
        """Let the worker release its device, then end its process; False when that was done before.

        A worker that has died or does not answer within 30 seconds is ended without being asked.
        """
        if self._closed:
            return False
        self._closed = True
        with suppress(Exception):  # whatever keeps it from an orderly end, the process goes
            self._worker.call("shutdown").result(_SHUTDOWN_S)
        self._worker.close()
        return True

    def _call(self, method: str, *arguments: object) -> Any:
        data = self._worker.call(method, *(encode(argument) for argument in arguments)).result()
        return decode(data, WORKER_CALLS[method].result)
