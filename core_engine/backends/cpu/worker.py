"""CpuWorker: threads, and the share of memory for the KV cache."""

from __future__ import annotations

import torch

from core_engine.backends.cpu.memory import available_bytes, return_freed_pages, total_bytes
from core_engine.backends.cpu.threads import default_threads
from core_engine.plugin.runtime import (
    DeviceReport,
    MemoryBudget,
    MemoryInfo,
    SchedulerOutput,
    StepHandle,
    WorkerBase,
)

__all__ = ["CpuWorker", "kv_cache_share"]

#: The KV cache takes half of the free memory, and no more than this.
MAX_KV_CACHE_BYTES = 8 << 30


class CpuWorker(WorkerBase):
    """Runs the model in the host's memory, in as many threads as the process has cores."""

    def init_device(self) -> DeviceReport:
        """Set the number of threads and report the memory."""
        threads = self.context.options["threads"]
        ranks = self.context.world_size
        torch.set_num_threads(threads if isinstance(threads, int) else default_threads(num_ranks=ranks))
        self.device = torch.device("cpu")
        self.join_ranks("gloo")
        return DeviceReport(
            device=self.context.devices[0].name,
            capabilities=self.context.capabilities,
            memory=MemoryInfo(total_bytes=total_bytes(), free_bytes=available_bytes()),
        )

    def determine_available_memory(self) -> MemoryBudget:
        """Give the KV cache half of what the largest step leaves free, or what the user said."""
        activation_bytes = self.model_runner.profile_run().activation_bytes
        total = total_bytes()
        kv_cache_bytes, rule = kv_cache_share(
            self.config.kv_cache_bytes, total, available_bytes(), activation_bytes, self.context.world_size
        )
        return MemoryBudget(
            total_bytes=total,
            weight_bytes=self.weight_bytes,
            activation_bytes=activation_bytes,
            kv_cache_bytes=kv_cache_bytes,
            rule=rule,
        )

    def shutdown(self) -> bool:
        """Drop the model and its caches and give their pages back to the system."""
        released = super().shutdown()
        if released:
            return_freed_pages()
        return released

    def execute_model(self, scheduler_output: SchedulerOutput) -> StepHandle:
        """Compute one step through the runner."""
        return self.model_runner.execute_model(scheduler_output)


def kv_cache_share(
    asked: int | None, total: int | None, free: int | None, activation_bytes: int, num_ranks: int = 1
) -> tuple[int, str]:
    """Return the bytes for the KV cache of each rank and the rule that gave them.

    ``asked`` is the user's number; ``total`` and ``free`` are None where the system does not tell. All ranks
    together take no more than one does.
    """
    if asked is not None:
        return asked, "kv_cache_bytes"
    if free is not None:
        share, part = max(0, free - num_ranks * activation_bytes) // 2, "half of the free memory"
    else:
        share, part = (total or 0) // 4, "a quarter of the memory"
    divided = f", over {num_ranks} ranks" if num_ranks > 1 else ""
    return min(share, MAX_KV_CACHE_BYTES) // num_ranks, f"{part}, at most 8 GiB{divided}"
