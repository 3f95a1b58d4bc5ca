"""CpuWorker: threads, and the share of memory for the KV cache."""

from __future__ import annotations

import torch

from core_engine.backends.cpu.memory import available_bytes, total_bytes
from core_engine.backends.cpu.threads import default_threads
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
    """Runs the model in the host's memory, in as many threads as the process has cores."""

    def init_device(self) -> DeviceReport:
        """Set the number of threads and report the memory."""
        threads = self.context.options["threads"]
        torch.set_num_threads(threads if isinstance(threads, int) else default_threads())
        self.device = torch.device("cpu")
        return DeviceReport(
            device=self.context.devices[0].name,
            capabilities=self.context.capabilities,
            memory=MemoryInfo(total_bytes=total_bytes(), free_bytes=available_bytes()),
        )

    def determine_available_memory(self) -> MemoryBudget:
        """Give the KV cache half of what the largest step leaves free, or what the user said."""
        activation_bytes = self.model_runner.profile_run().activation_bytes
        total, free = total_bytes(), available_bytes()
        if self.config.kv_cache_bytes is not None:
            kv_cache_bytes, rule = self.config.kv_cache_bytes, "kv_cache_bytes"
        elif free is not None:
            kv_cache_bytes = min(max(0, free - activation_bytes) // 2, MAX_KV_CACHE_BYTES)
            rule = "half of the free memory, at most 8 GiB"
        else:
            kv_cache_bytes = min((total or 0) // 4, MAX_KV_CACHE_BYTES)
            rule = "a quarter of the memory, at most 8 GiB"
        return MemoryBudget(
            total_bytes=total,
            weight_bytes=self.weight_bytes,
            activation_bytes=activation_bytes,
            kv_cache_bytes=kv_cache_bytes,
            rule=rule,
        )

    def execute_model(self, scheduler_output: SchedulerOutput) -> StepHandle:
        """Compute one step through the runner."""
        return self.model_runner.execute_model(scheduler_output)
