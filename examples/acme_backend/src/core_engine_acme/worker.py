"""AcmeWorker: opens the device and says how much memory the KV cache may have."""

import torch

from core_engine.plugin.runtime import DeviceReport, MemoryBudget, MemoryInfo, WorkerBase

MEMORY_BYTES = 2 << 30


class AcmeWorker(WorkerBase):
    def init_device(self):
        self.device = torch.device("cpu")  # yours: torch.device("acme", 0), or a handle of your runtime
        memory = MemoryInfo(total_bytes=MEMORY_BYTES, free_bytes=MEMORY_BYTES)
        return DeviceReport(device="acme:0", capabilities=self.context.capabilities, memory=memory)

    def determine_available_memory(self):
        activation_bytes = self.model_runner.profile_run().activation_bytes
        free_bytes = max(0, MEMORY_BYTES - self.weight_bytes - activation_bytes)
        asked = self.config.kv_cache_bytes
        return MemoryBudget(
            total_bytes=MEMORY_BYTES,
            weight_bytes=self.weight_bytes,
            activation_bytes=activation_bytes,
            kv_cache_bytes=free_bytes // 2 if asked is None else asked,
            rule="half of what is free" if asked is None else "kv_cache_bytes",
        )

    def execute_model(self, scheduler_output):
        return self.model_runner.execute_model(scheduler_output)
