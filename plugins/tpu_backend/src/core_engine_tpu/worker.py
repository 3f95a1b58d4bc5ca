"""TpuWorker: owns one TPU device for the life of a worker."""

from __future__ import annotations

from core_engine.plugin.runtime import (
    DeviceReport,
    MemoryBudget,
    MemoryInfo,
    SchedulerOutput,
    StepHandle,
    WorkerBase,
)
from core_engine_tpu.runtime import XlaRuntime

__all__ = ["TpuWorker"]


class TpuWorker(WorkerBase):
    """Opens the device and divides its memory; ``self.device`` is the `XlaRuntime`."""

    device: XlaRuntime

    def init_device(self) -> DeviceReport:
        """Start torch_xla's client on the planned device."""
        self.device = XlaRuntime()
        return DeviceReport(
            device=str(self.device.device), capabilities=self.context.capabilities, memory=self._memory()
        )

    def determine_available_memory(self) -> MemoryBudget:
        """Profile the largest step; what it and the weights leave of the usable memory is for the cache.

        Where the device does not tell its memory (PJRT CPU) the option ``memory_bytes`` is the whole.
        """
        activation_bytes = self.model_runner.profile_run().activation_bytes
        total = self._memory().total_bytes or int(self.context.options["memory_bytes"] or 0)
        usable = int(total * self.config.device_memory_utilization)
        kv_cache_bytes = max(0, usable - self.weight_bytes - activation_bytes)
        share = f"{self.config.device_memory_utilization:.0%}"
        rule = f"{share} of the device's memory, less weights and activations"
        if self.config.kv_cache_bytes is not None:
            kv_cache_bytes, rule = self.config.kv_cache_bytes, "kv_cache_bytes as configured"
        return MemoryBudget(
            total_bytes=total,
            weight_bytes=self.weight_bytes,
            activation_bytes=activation_bytes,
            kv_cache_bytes=kv_cache_bytes,
            rule=rule,
        )

    def execute_model(self, scheduler_output: SchedulerOutput) -> StepHandle:
        """Compute one step."""
        return self.model_runner.execute_model(scheduler_output)

    def _memory(self) -> MemoryInfo:
        memory = self.device.memory()
        if memory is None:
            return MemoryInfo(total_bytes=None, free_bytes=None)
        return MemoryInfo(total_bytes=memory[0], free_bytes=memory[0] - memory[1])
