"""ProcessExecutor: workers in processes of their own."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from core_engine.backends.reference import encode_ref
from core_engine.errors import CoreEngineError, StepTimeout, UnsupportedFeature
from core_engine.executor.base import Executor
from core_engine.executor.codec import WORKER_CALLS, Start, decode, encode
from core_engine.executor.rank_reports import merge_reports
from core_engine.executor.rendezvous import Rendezvous
from core_engine.executor.worker_group import GroupCall, WorkerGroup
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

#: How long a worker may take to say that it is well.
_HEALTH_S = 30.0


class RemoteStep:
    """A step that worker processes compute; it is done when every rank has answered."""

    def __init__(self, call: GroupCall, step_id: int) -> None:
        self._call = call
        self._step_id = step_id
        self._output: ModelRunnerOutput | None = None

    def result(self, timeout_s: float | None = None) -> ModelRunnerOutput:
        """Wait for the step; see `StepHandle.result`. Also raises `WorkerDied`."""
        if self._output is None:
            try:
                first, *_ = self._call.results(timeout_s)
            except TimeoutError:
                raise StepTimeout(f"step {self._step_id} did not finish within {timeout_s} s") from None
            self._output = decode(first, ModelRunnerOutput)
        return self._output


class ProcessExecutor(Executor):
    """Sends every call to one worker process per rank, which loads exactly what its reference names.

    ``refs`` and ``contexts`` have one entry per rank, rank 0 first. An error in a worker is raised here
    under its own type, with the worker's traceback as a note; `WorkerGroup` says what happens to the other
    ranks then. When a process ends on its own, calls raise `WorkerDied`, and `EngineClosed` after
    ``shutdown``. `merge_reports` tells what is returned where ranks answer differently. The processes end
    also when the executor is dropped without ``shutdown``.
    """

    def __init__(
        self,
        refs: Sequence[BackendRef],
        contexts: Sequence[WorkerContext],
        extensions: tuple[InstalledPlugin, ...] = (),
    ) -> None:
        self._rendezvous = Rendezvous() if len(contexts) > 1 else None
        file = self._rendezvous.file if self._rendezvous else ""
        starts = []
        for ref, context in zip(refs, contexts, strict=True):
            start = Start(
                ref=encode_ref(ref),
                context=encode(replace(context, rendezvous=file)),
                extensions=extensions,
                rank=context.plan.rank,
                rendezvous=file,
            )
            starts.append((start, ref.plan.environment))
        self._last_step: GroupCall | None = None
        try:
            self._group = WorkerGroup(starts)
        except BaseException:
            self._remove_rendezvous()
            raise
        self._when_dropped = weakref.finalize(self, _close_beside, self._group)
        self._when_dropped.atexit = False  # workers see by themselves that this process ends

    @property
    def pids(self) -> tuple[int, ...]:
        """The workers' process ids, rank 0 first."""
        return self._group.pids

    @property
    def failure(self) -> CoreEngineError | None:
        """See `Executor.failure`."""
        return self._group.failure

    def init_device(self) -> DeviceReport:
        """Load the plugin in the workers, open the devices and build the model runners."""
        report: DeviceReport = self._call("init_device")
        return report

    def load_model(self) -> LoadReport:
        """See `WorkerApi.load_model`."""
        report: LoadReport = self._call("load_model")
        return report

    def get_model(self) -> Any:
        """Raise `UnsupportedFeature`: the model lives in the worker's process."""
        raise UnsupportedFeature(
            "get_model: the model lives in a process of its own and cannot leave it; set executor to "
            "'in-process' (and tensor_parallel_size to 1) to reach it"
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
        """Send a step and return at once; several steps may be under way, answered in order.

        With several ranks the step before must have ended: a rank that fails is out of a step that the others
        still compute, and would take the next one's collectives for those of that step.
        """
        if len(self.pids) > 1 and self._last_step is not None and self.failure is None:
            with suppress(CoreEngineError):  # its own handle tells
                self._last_step.results()
        self._last_step = self._group.call("execute_model", encode(scheduler_output))
        return RemoteStep(self._last_step, scheduler_output.step_id)

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
        """Ask the workers, behind the steps under way; one that does not answer in 30 s is unhealthy.

        Raises `WorkerDied` when a process has ended.
        """
        call = self._group.call("check_health")
        try:
            answers = call.results(_HEALTH_S)
        except TimeoutError:
            silent = call.unanswered()
            who = f"rank {', '.join(map(str, silent))}" if len(self.pids) > 1 else "the worker"
            return Health(healthy=False, detail=f"{who} did not answer within {_HEALTH_S:g} s")
        health: Health = merge_reports("check_health", [decode(answer, Health) for answer in answers])
        return health

    def shutdown(self) -> bool:
        """Let the workers release their devices, then end their processes; False when that was done before.

        Workers that have died or do not answer within 30 seconds are ended without being asked.
        """
        if self._when_dropped.detach() is None:
            return False
        try:
            self._group.shutdown()
        finally:
            self._remove_rendezvous()
        return True

    def _call(self, method: str, *arguments: object) -> Any:
        encoded = [encode(argument) for argument in arguments]
        results = self._group.call(method, *encoded).results()
        return merge_reports(method, [decode(result, WORKER_CALLS[method].result) for result in results])

    def _remove_rendezvous(self) -> None:
        if self._rendezvous is not None:
            self._rendezvous.remove()


def _close_beside(group: WorkerGroup) -> None:
    """Close ``group`` in a thread: a garbage collector may come while this one holds the group's locks."""
    threading.Thread(target=group.close, name="worker-group-close", daemon=True).start()
