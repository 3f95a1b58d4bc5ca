"""WorkerApi: the worker's methods, which are the hookspecs at the same time."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from core_engine.errors import UnsupportedFeature
from core_engine.hookspecs._complete import CompleteOnCreation

if TYPE_CHECKING:
    from core_engine.kv_cache.specs import KVCacheConfig, KVCacheSpec
    from core_engine.lora.messages import LoRAAdapter, LoRAInfo
    from core_engine.scheduler.output import SchedulerOutput
    from core_engine.worker.output import StepHandle
    from core_engine.worker.reports import CaptureReport, DeviceReport, Health, LoadReport, MemoryBudget


_NO_LORA = "this worker has no LoRA hooks; its backend must not declare the capability lora"


class WorkerApi(CompleteOnCreation):
    """Owns one device (or several that act as one) for the life of a process.

    Called in this order: ``init_device``, ``load_model``, ``get_kv_cache_spec``,
    ``determine_available_memory``, ``initialize_cache``, ``compile_or_warm_up_model``, then
    ``execute_model`` once per step, ``shutdown`` last. No method may return None. Names and division
    follow the vLLM V1 RFC "TPU support and multiple architecture support".
    """

    @abstractmethod
    def init_device(self) -> DeviceReport:
        """Open the device and report it with the capabilities narrowed to what it offers."""

    @abstractmethod
    def load_model(self) -> LoadReport:
        """Load the model onto the device; see `ModelRunnerApi.load_model`."""

    @abstractmethod
    def get_model(self) -> Any:
        """Return the loaded model."""

    @abstractmethod
    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec | str]:
        """Return each attention layer's cache; see `ModelRunnerApi.get_kv_cache_spec`."""

    @abstractmethod
    def determine_available_memory(self) -> MemoryBudget:
        """Profile the largest step and say how many bytes are left for the KV cache."""

    @abstractmethod
    def initialize_cache(self, kv_cache_config: KVCacheConfig) -> int:
        """Allocate and bind the KV cache; return its bytes."""

    @abstractmethod
    def compile_or_warm_up_model(self) -> CaptureReport:
        """Capture the model unless ``enforce_eager``, then set the random seed."""

    @abstractmethod
    def execute_model(self, scheduler_output: SchedulerOutput) -> StepHandle:
        """Compute one step."""

    def add_lora(self, adapter: LoRAAdapter) -> LoRAInfo:
        """Load a LoRA adapter; see `ModelRunnerApi.add_lora`. Optional: `Capabilities.lora`."""
        raise UnsupportedFeature(_NO_LORA)

    def remove_lora(self, lora_id: int) -> bool:
        """Forget a LoRA adapter; see `ModelRunnerApi.remove_lora`. Optional: `Capabilities.lora`."""
        raise UnsupportedFeature(_NO_LORA)

    def list_loras(self) -> tuple[LoRAInfo, ...]:
        """List the LoRA adapters that are loaded. Optional: `Capabilities.lora`."""
        raise UnsupportedFeature(_NO_LORA)

    @abstractmethod
    def profile(self, action: str) -> str:
        """Start ("start") or stop ("stop") the torch profiler; return where the trace is written."""

    @abstractmethod
    def check_health(self) -> Health:
        """Say whether the device still answers."""

    @abstractmethod
    def shutdown(self) -> bool:
        """Release the device and everything on it; safe to call twice and after a failed step.

        Returns True when there was something to release.
        """
