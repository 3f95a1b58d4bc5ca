"""BackendSpec: the hooks of a backend's light module, called before anything heavy is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core_engine.plugin._markers import backend_hookspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core_engine.config import EngineConfig, ModelConfig
    from core_engine.plugin._backend_types import (
        BackendInfo,
        BackendOption,
        ConfigChange,
        Detection,
        DeviceInfo,
        WorkerPlan,
    )
    from core_engine.plugin._capabilities import Capabilities
    from core_engine.plugin._compile_types import CompiledGraph, SizePool
    from core_engine.plugin._probe import Probe
    from core_engine.sampling.params import SamplingParams
    from core_engine.worker.context import RunnerContext, WorkerContext
    from core_engine.worker.model_runner import ModelRunnerBase
    from core_engine.worker.worker import WorkerBase

    Options = Mapping[str, str | int | float | bool | None]

#: A backend that leaves one of these out is refused before detection.
REQUIRED_HOOKS = frozenset(
    {"backend_info", "detect", "capabilities", "plan_workers", "create_worker", "create_model_runner"}
)


class BackendSpec:
    """The discovery-time contract.

    A backend's entry point names a module whose functions carry `core_engine.plugin.hookimpl`. The
    module may import the standard library and `core_engine.plugin`, nothing heavy; only
    ``create_worker`` and ``create_model_runner`` import the device's software, and only in the
    process that runs the worker. A function may leave out arguments that it does not need.

    ``options`` holds a value for every option of ``option_schema``: ``config.backend_options`` parsed
    and checked, defaults filled in; the worker finds the same in `WorkerContext.options`.
    """

    @backend_hookspec(firstresult=True)
    def backend_info(self) -> BackendInfo:
        """Say who the backend is. Required; its name equals the entry point's."""
        raise NotImplementedError

    @backend_hookspec(firstresult=True)
    def detect(self, probe: Probe) -> Detection:
        """Look for the device through ``probe``, without creating a device context. Required.

        Called once or more per process; the same machine gives the same answer. Where nothing is
        found, return `DetectionState.UNAVAILABLE` with the reason; do not raise.
        """
        raise NotImplementedError

    @backend_hookspec(firstresult=True)
    def capabilities(
        self, devices: tuple[DeviceInfo, ...], config: EngineConfig, model: ModelConfig, options: Options
    ) -> Capabilities:
        """Declare what works on ``devices`` under ``config``. Required; pure."""
        raise NotImplementedError

    @backend_hookspec(firstresult=True)
    def option_schema(self) -> tuple[BackendOption, ...]:
        """List the options that ``--backend-option`` takes; left out means none."""
        raise NotImplementedError

    @backend_hookspec(firstresult=True)
    def check_config(
        self, config: EngineConfig, model: ModelConfig, devices: tuple[DeviceInfo, ...], options: Options
    ) -> tuple[ConfigChange, ...]:
        """Return the changes that this backend needs, or raise a `ConfigError` for what cannot work.

        Core applies the changes in order and logs each as old → new with its reason. Called before
        any weight is read. Left out means no change.
        """
        raise NotImplementedError

    @backend_hookspec(firstresult=True)
    def plan_workers(
        self, config: EngineConfig, devices: tuple[DeviceInfo, ...], options: Options
    ) -> tuple[WorkerPlan, ...]:
        """Divide the devices among worker processes, rank 0 first. Required.

        Raise `UnsupportedFeature` where ``config.tensor_parallel_size`` cannot be met.
        """
        raise NotImplementedError

    @backend_hookspec(firstresult=True)
    def create_worker(self, context: WorkerContext) -> WorkerBase:
        """Import the device's software and build the worker. Required; called in the worker's process.

        `core_engine.plugin.load_class` keeps the heavy import out of the light module.
        """
        raise NotImplementedError

    @backend_hookspec(firstresult=True)
    def create_model_runner(self, context: RunnerContext) -> ModelRunnerBase:
        """Build the model runner for an initialised device. Required; called after ``init_device``."""
        raise NotImplementedError

    @backend_hookspec(firstresult=True)
    def validate_request(self, params: SamplingParams, num_prompt_tokens: int, config: EngineConfig) -> bool:
        """Raise `UnsupportedFeature` for a request that this backend cannot serve; return True otherwise.

        Left out means that the declared capabilities say everything.
        """
        raise NotImplementedError

    @backend_hookspec(firstresult=True)
    def doctor_rows(self, probe: Probe) -> tuple[tuple[str, str], ...]:
        """Return (fact, value) pairs of the backend's own for ``core-engine doctor``."""
        raise NotImplementedError

    @backend_hookspec(firstresult=True)
    def compile_target(self, target: str, options: Options) -> tuple[DeviceInfo, ...]:
        """Return the devices that ``target`` names, which need not be there, each with its memory.

        Raise `ConfigError` with the possible targets for an unknown one. ``core-engine compile-check``
        settles an engine for these devices. Left out, with ``compile_check``, means that the backend
        offers no such check.
        """
        raise NotImplementedError

    @backend_hookspec(firstresult=True)
    def compile_check(
        self, context: WorkerContext, target: str, size_pool: SizePool
    ) -> tuple[CompiledGraph, ...]:
        """Compile every graph of the engine for ``target``, without its devices and without weights.

        Build what a start builds for ``context``, ask ``size_pool`` once for the KV cache, and return the
        graphs of warm-up in their order. A graph that does not compile stands among them with its
        error. Raise `UnsupportedFeature` where the compiler is not installed.
        """
        raise NotImplementedError
