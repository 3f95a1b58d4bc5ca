"""ModelRunnerApi: the model runner's methods, which are the hookspecs at the same time."""

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
    from core_engine.worker.reports import CaptureReport, LoadReport, ProfileReport


_NO_LORA = "this model runner has no LoRA hooks; its backend must not declare the capability lora"


class ModelRunnerApi(CompleteOnCreation):
    """Runs one model on one device.

    Called in this order: ``load_model``, ``get_kv_cache_spec``, ``profile_run``,
    ``initialize_kv_cache``, ``capture_model``, then ``execute_model`` once per step. No method may
    return None (a None lets pluggy go on to the next implementation). Names and division follow the
    vLLM V1 RFC "TPU support and multiple architecture support".
    """

    @abstractmethod
    def load_model(self) -> LoadReport:
        """Build the model, find its attention layers and read the weights onto the device.

        Raises `UnsupportedModel` before any weight is read when the architecture is refused,
        `ModelLoadError` for damaged files, `OutOfDeviceMemory` when the weights do not fit.
        """

    @abstractmethod
    def get_model(self) -> Any:
        """Return the loaded model (a ``torch.nn.Module`` for every runner that core ships)."""

    @abstractmethod
    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec | str]:
        """Return each attention layer's cache, in forward order.

        A string in place of a spec names the earlier layer whose cache this one reuses.
        """

    @abstractmethod
    def profile_run(self) -> ProfileReport:
        """Run the largest step with no KV cache bound and report the memory that it took."""

    @abstractmethod
    def initialize_kv_cache(self, kv_cache_config: KVCacheConfig) -> int:
        """Allocate the pool, bind it to the attention layers and return its bytes.

        The i-th layers of all groups share one cache; each reads it by its own group's block table.
        May be called again with another config: the old pool is released and the new one bound.
        """

    @abstractmethod
    def dummy_run(self, num_tokens: int, num_reqs: int) -> int:
        """Run a step of invented tokens that writes only to the null block.

        Returns the number of tokens that were computed, padding included.
        """

    @abstractmethod
    def capture_model(self) -> CaptureReport:
        """Compile or capture every shape that a step can take, so that serving never does."""

    @abstractmethod
    def execute_model(self, scheduler_output: SchedulerOutput) -> StepHandle:
        """Compute one step; a synchronous runner returns a finished handle."""

    def add_lora(self, adapter: LoRAAdapter) -> LoRAInfo:
        """Load a LoRA adapter, so that requests may name its number. Optional: `Capabilities.lora`.

        It is read from its folder and checked against the model; the same number again changes nothing.
        Raises `AdapterError` for an adapter that is damaged or does not fit, and then nothing is loaded.
        A runner without LoRA raises `UnsupportedFeature`, as this default does.
        """
        raise UnsupportedFeature(_NO_LORA)

    def remove_lora(self, lora_id: int) -> bool:
        """Forget a LoRA adapter; False when there is none of that number. Optional: `Capabilities.lora`.

        Requests that hold a row go on with it; a request that names it later is a fault of the caller.
        """
        raise UnsupportedFeature(_NO_LORA)

    def list_loras(self) -> tuple[LoRAInfo, ...]:
        """List the LoRA adapters that are loaded, by number. Optional: `Capabilities.lora`."""
        raise UnsupportedFeature(_NO_LORA)
