"""TpuWorker: owns one TPU device for the life of a worker."""

from __future__ import annotations

import logging
import os

from core_engine.plugin.runtime import (
    CaptureReport,
    DeviceReport,
    MemoryBudget,
    MemoryInfo,
    SchedulerOutput,
    StepHandle,
    WorkerBase,
)
from core_engine_tpu.compile_cache import CompileCache, choose_cache_folder
from core_engine_tpu.memory import divide_memory, total_memory
from core_engine_tpu.runtime import XlaRuntime

__all__ = ["TpuWorker"]

logger = logging.getLogger("core_engine.backends.tpu")


class TpuWorker(WorkerBase):
    """Opens the device and divides its memory; ``self.device`` is the `XlaRuntime`."""

    device: XlaRuntime

    def init_device(self) -> DeviceReport:
        """Start torch_xla's client on the planned device."""
        self.device = XlaRuntime(self.config.tensor_parallel_size)
        self._compile_cache = self._open_compile_cache()
        return DeviceReport(
            device=str(self.device.device), capabilities=self.context.capabilities, memory=self._memory()
        )

    def compile_or_warm_up_model(self) -> CaptureReport:
        """Compile every graph, and tell how many the compile cache had."""
        report = super().compile_or_warm_up_model()
        if self._compile_cache is not None:
            self._compile_cache.log_use()
        return report

    def determine_available_memory(self) -> MemoryBudget:
        """Profile the largest step; what it and the weights leave of a device's memory is for the cache.

        All numbers are those of one device. Raises `DoesNotFit` where nothing is left.
        """
        activation_bytes = self.model_runner.profile_run().activation_bytes
        total, source = total_memory(self.device, self.context)
        budget = MemoryBudget(
            total_bytes=total,
            weight_bytes=self.weight_bytes,
            activation_bytes=activation_bytes,
            kv_cache_bytes=self.config.kv_cache_bytes or 0,
            rule="kv_cache_bytes as configured",
        )
        if self.config.kv_cache_bytes is not None:
            return budget
        return divide_memory(budget, share=self.config.device_memory_utilization, source=source)

    def shutdown(self) -> bool:
        """Drop the runner, then the graphs that would hold its memory."""
        was_open = super().shutdown()
        if was_open:
            self.device.close()
        return was_open

    def execute_model(self, scheduler_output: SchedulerOutput) -> StepHandle:
        """Compute one step."""
        return self.model_runner.execute_model(scheduler_output)

    def _memory(self) -> MemoryInfo:
        memory = self.device.memory()
        if memory is None:
            return MemoryInfo(total_bytes=None, free_bytes=None)
        return MemoryInfo(total_bytes=memory[0], free_bytes=memory[0] - memory[1])

    def _open_compile_cache(self) -> CompileCache | None:
        option = str(self.context.options["compile_cache"])
        folder = choose_cache_folder(
            option,
            self.context.model,
            is_tpu=self.device.is_tpu,
            num_devices=self.device.num_devices,
            environment=os.environ,
        )
        if folder is None:
            return None
        if self.device.open_compile_cache(folder):
            return CompileCache(folder)
        logger.warning(
            "no compile cache for %s: this process has compiled graphs before, so it is too late to open one",
            self.context.model.path,
        )
        return None
