"""The typed façades: call a role's hooks as plain methods, so that mypy sees the API and not ``Any``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core_engine.hookspecs.model_runner import ModelRunnerApi
from core_engine.hookspecs.worker import WorkerApi

if TYPE_CHECKING:
    from core_engine.kv_cache.specs import KVCacheConfig, KVCacheSpec
    from core_engine.lora.messages import LoRAAdapter, LoRAInfo
    from core_engine.scheduler.output import SchedulerOutput
    from core_engine.worker.hook_manager import HookManager
    from core_engine.worker.output import StepHandle
    from core_engine.worker.reports import (
        CaptureReport,
        DeviceReport,
        Health,
        LoadReport,
        MemoryBudget,
        ProfileReport,
    )

__all__ = ["ModelRunnerFacade", "WorkerFacade"]


class WorkerFacade(WorkerApi):
    """The worker as its process sees it: every method is one hook call."""

    def __init__(self, hooks: HookManager) -> None:
        self._hooks = hooks

    def init_device(self) -> DeviceReport:
        """Call the hook of that name."""
        report: DeviceReport = self._hooks.call("init_device")
        return report

    def load_model(self) -> LoadReport:
        """Call the hook of that name."""
        report: LoadReport = self._hooks.call("load_model")
        return report

    def get_model(self) -> Any:
        """Call the hook of that name."""
        return self._hooks.call("get_model")

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec | str]:
        """Call the hook of that name."""
        specs: dict[str, KVCacheSpec | str] = self._hooks.call("get_kv_cache_spec")
        return specs

    def determine_available_memory(self) -> MemoryBudget:
        """Call the hook of that name."""
        budget: MemoryBudget = self._hooks.call("determine_available_memory")
        return budget

    def initialize_cache(self, kv_cache_config: KVCacheConfig) -> int:
        """Call the hook of that name."""
        num_bytes: int = self._hooks.call("initialize_cache", kv_cache_config=kv_cache_config)
        return num_bytes

    def compile_or_warm_up_model(self) -> CaptureReport:
        """Call the hook of that name."""
        report: CaptureReport = self._hooks.call("compile_or_warm_up_model")
        return report

    def execute_model(self, scheduler_output: SchedulerOutput) -> StepHandle:
        """Call the hook of that name."""
        handle: StepHandle = self._hooks.call("execute_model", scheduler_output=scheduler_output)
        return handle

    def add_lora(self, adapter: LoRAAdapter) -> LoRAInfo:
        """Call the hook of that name."""
        info: LoRAInfo = self._hooks.call("add_lora", adapter=adapter)
        return info

    def remove_lora(self, lora_id: int) -> bool:
        """Call the hook of that name."""
        removed: bool = self._hooks.call("remove_lora", lora_id=lora_id)
        return removed

    def list_loras(self) -> tuple[LoRAInfo, ...]:
        """Call the hook of that name."""
        infos: tuple[LoRAInfo, ...] = self._hooks.call("list_loras")
        return infos

    def profile(self, action: str) -> str:
        """Call the hook of that name."""
        path: str = self._hooks.call("profile", action=action)
        return path

    def check_health(self) -> Health:
        """Call the hook of that name."""
        health: Health = self._hooks.call("check_health")
        return health

    def shutdown(self) -> bool:
        """Call the hook of that name."""
        released: bool = self._hooks.call("shutdown")
        return released


class ModelRunnerFacade(ModelRunnerApi):
    """The model runner as its worker sees it: every method is one hook call, so extensions always fire."""

    def __init__(self, hooks: HookManager) -> None:
        self._hooks = hooks

    def load_model(self) -> LoadReport:
        """Call the hook of that name."""
        report: LoadReport = self._hooks.call("load_model")
        return report

    def get_model(self) -> Any:
        """Call the hook of that name."""
        return self._hooks.call("get_model")

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec | str]:
        """Call the hook of that name."""
        specs: dict[str, KVCacheSpec | str] = self._hooks.call("get_kv_cache_spec")
        return specs

    def profile_run(self) -> ProfileReport:
        """Call the hook of that name."""
        report: ProfileReport = self._hooks.call("profile_run")
        return report

    def initialize_kv_cache(self, kv_cache_config: KVCacheConfig) -> int:
        """Call the hook of that name."""
        num_bytes: int = self._hooks.call("initialize_kv_cache", kv_cache_config=kv_cache_config)
        return num_bytes

    def dummy_run(self, num_tokens: int, num_reqs: int) -> int:
        """Call the hook of that name."""
        num_computed: int = self._hooks.call("dummy_run", num_tokens=num_tokens, num_reqs=num_reqs)
        return num_computed

    def capture_model(self) -> CaptureReport:
        """Call the hook of that name."""
        report: CaptureReport = self._hooks.call("capture_model")
        return report

    def execute_model(self, scheduler_output: SchedulerOutput) -> StepHandle:
        """Call the hook of that name."""
        handle: StepHandle = self._hooks.call("execute_model", scheduler_output=scheduler_output)
        return handle

    def add_lora(self, adapter: LoRAAdapter) -> LoRAInfo:
        """Call the hook of that name."""
        info: LoRAInfo = self._hooks.call("add_lora", adapter=adapter)
        return info

    def remove_lora(self, lora_id: int) -> bool:
        """Call the hook of that name."""
        removed: bool = self._hooks.call("remove_lora", lora_id=lora_id)
        return removed

    def list_loras(self) -> tuple[LoRAInfo, ...]:
        """Call the hook of that name."""
        infos: tuple[LoRAInfo, ...] = self._hooks.call("list_loras")
        return infos
