"""SimWorker: owns one simulated device for the life of a worker."""

from __future__ import annotations

from core_engine.plugin.runtime import (
    DeviceReport,
    MemoryBudget,
    MemoryInfo,
    SchedulerOutput,
    StepHandle,
    WorkerBase,
)
from core_engine_sim.device import SimDevice

__all__ = ["SimWorker"]


class SimWorker(WorkerBase):
    """Opens the device, divides its memory and passes steps on."""

    device: SimDevice

    def init_device(self) -> DeviceReport:
        """Open the planned device with as much memory as the option ``memory_bytes`` grants."""
        limit = self.context.options["memory_bytes"]
        self.device = SimDevice(self.context.plan.device_indices[0], int(limit or 0))
        return DeviceReport(
            device=str(self.device),
            capabilities=self.context.capabilities,
            memory=MemoryInfo(
                total_bytes=self.device.memory.limit_bytes, free_bytes=self.device.memory.free_bytes
            ),
        )

    def determine_available_memory(self) -> MemoryBudget:
        """Profile the largest step; the usable share minus weights and that step is for the cache."""
        memory = self.device.memory
        weight_bytes = memory.used_bytes
        activation_bytes = self.model_runner.profile_run().activation_bytes
        usable = int(memory.limit_bytes * self.config.device_memory_utilization)
        free_bytes = max(0, usable - weight_bytes - activation_bytes)
        share = f"{self.config.device_memory_utilization:.0%}"
        rule = f"{share} of the memory of {self.device}, less weights and activations"
        if self.config.kv_cache_bytes is not None:
            free_bytes, rule = self.config.kv_cache_bytes, "kv_cache_bytes as configured"
        return MemoryBudget(
            total_bytes=memory.limit_bytes,
            weight_bytes=weight_bytes,
            activation_bytes=activation_bytes,
            kv_cache_bytes=free_bytes,
            rule=rule,
        )

    def execute_model(self, scheduler_output: SchedulerOutput) -> StepHandle:
        """Compute one step."""
        return self.model_runner.execute_model(scheduler_output)
