"""FakeWorker and FakeModelRunner: the heavy half of the fake backend; imports torch through the bases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core_engine.errors import OutOfDeviceMemory
from core_engine.kv_cache.specs import KVCacheConfig, KVCacheSpec
from core_engine.testing.fake_model import FakeModel
from core_engine.testing.fake_runner import FakeRunner
from core_engine.worker.model_runner import ModelRunnerBase
from core_engine.worker.reports import (
    CaptureReport,
    DeviceReport,
    LoadReport,
    MemoryBudget,
    MemoryInfo,
    ProfileReport,
)
from core_engine.worker.worker import WorkerBase

if TYPE_CHECKING:
    from core_engine.scheduler.output import SchedulerOutput
    from core_engine.worker.output import StepHandle

__all__ = ["FakeModelRunner", "FakeWorker"]

_DEFAULT_KV_CACHE_BYTES = 1 << 20
_SPEC = KVCacheSpec(num_kv_heads=1, head_dim=8, head_dim_v=8, dtype="float32")


class FakeWorker(WorkerBase):
    """The three methods that `WorkerBase` leaves to the device, over no device."""

    def init_device(self) -> DeviceReport:
        """Name the device and pass the declared capabilities on."""
        self.device = "nothing"
        memory = MemoryInfo(total_bytes=None, free_bytes=None)
        return DeviceReport(device="nothing", capabilities=self.context.capabilities, memory=memory)

    def determine_available_memory(self) -> MemoryBudget:
        """Take ``kv_cache_bytes`` of the configuration, else 1 MiB."""
        profile = self.model_runner.profile_run()
        return MemoryBudget(
            total_bytes=None,
            weight_bytes=0,
            activation_bytes=profile.activation_bytes,
            kv_cache_bytes=self.config.kv_cache_bytes or _DEFAULT_KV_CACHE_BYTES,
            rule="kv_cache_bytes of the configuration, else 1 MiB",
        )

    def execute_model(self, scheduler_output: SchedulerOutput) -> StepHandle:
        """Let the runner compute the step."""
        return self.model_runner.execute_model(scheduler_output)


class FakeModelRunner(ModelRunnerBase):
    """Wraps `FakeRunner`; ``vocab_size`` and ``num_layers`` come from the model's configuration."""

    _runner: FakeRunner | None = None

    def load_model(self) -> LoadReport:
        """Make the fake model; no file is read."""
        model = self.context.model
        self.model = FakeModel(model.vocab_size)
        self.kv_cache_spec = {f"layer.{index}": _SPEC for index in range(model.num_layers)}
        return LoadReport(weight_bytes=0, seconds=0.0)

    def profile_run(self) -> ProfileReport:
        """Report that a step takes no memory."""
        return ProfileReport(activation_bytes=0)

    def initialize_kv_cache(self, kv_cache_config: KVCacheConfig) -> int:
        """Start with an empty cache of the given size; report one byte per slot and cache."""
        self._runner = FakeRunner(
            kv_cache_config,
            self.get_model(),
            max_num_batched_tokens=self.config.max_num_batched_tokens,
            max_num_seqs=self.config.max_num_seqs,
            max_loras=self.config.max_loras,
        )
        num_caches = max(len(group.layers) for group in kv_cache_config.groups)
        return num_caches * kv_cache_config.num_blocks * kv_cache_config.block_size

    def dummy_run(self, num_tokens: int, num_reqs: int) -> int:
        """Compute nothing."""
        return num_tokens

    def capture_model(self) -> CaptureReport:
        """Have nothing to capture."""
        return CaptureReport(num_programs=0, seconds=0.0)

    def execute_model(self, scheduler_output: SchedulerOutput) -> StepHandle:
        """Check and compute one step; see `FakeRunner`."""
        if scheduler_output.step_id == self.context.worker.options.get("fail_at_step", -1):
            raise OutOfDeviceMemory(f"step {scheduler_output.step_id} fails on purpose (fail_at_step)")
        if self._runner is None:
            raise RuntimeError("execute_model before initialize_kv_cache")
        return self._runner.execute_model(scheduler_output)
