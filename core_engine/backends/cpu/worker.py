"""CpuWorker: threads, and the share of memory for the KV cache."""

from __future__ import annotations

import torch

from core_engine.backends.cpu.memory import available_bytes, total_bytes
from core_engine.plugin.runtime import (
    DeviceReport,
    MemoryBudget,
    MemoryInfo,
    SchedulerOutput,
    StepHandle,
    WorkerBase,
)

__all__ = ["CpuWorker"]

#: The KV cache takes half of the free memory, and no more than this.
MAX_KV_CACHE_BYTES = 8 << 30


class CpuWorker(WorkerBase):
    """Runs the model in the host's memory."""

    def init_device(self) -> DeviceReport:
        """Set the number of threads and report the memory."""
        threads = self.context.options.get("threads")
        if isinstance(threads, int):
            torch.set_num_threads(threads)
        self.device = torch.device("cpu")
        return DeviceReport(
            device=self.context.devices[0].name,
            capabilities=self.context.capabilities,
            memory=MemoryInfo(total_bytes=total_bytes(), free_bytes=available_bytes()),
        )

    def determine_available_memory(self) -> MemoryBudget:
        """Give the KV cache half of what is free after loading, or what the user said."""
        profile = self.model_runner.profile_run()
        free = available_bytes() or 0
        asked = self.config.kv_cache_bytes
        return MemoryBudget(
            total_bytes=total_bytes(),
            weight_bytes=self.weight_bytes,
            activation_bytes=profile.activation_bytes,
            kv_cache_bytes=min(free // 2, MAX_KV_CACHE_BYTES) if asked is None else asked,
            rule="half of the free memory, at most 8 GiB" if asked is None else "kv_cache_bytes",
        )

    def execute_model(self, scheduler_output: SchedulerOutput) -> StepHandle:
        """Compute one step through the runner."""
        return self.model_runner.execute_model(scheduler_output)
