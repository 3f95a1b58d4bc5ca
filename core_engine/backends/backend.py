"""Backend: the typed façade over one plugin's discovery hooks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_type_hints

import msgspec
import pluggy

from core_engine._torch_autoload import torch_autoload_off
from core_engine.backends.conform import FieldMismatch, conform
from core_engine.backends.installed import InstalledPlugin
from core_engine.backends.options import OptionValue, check_schema, parse_options
from core_engine.backends.plugin_code import describe_failure, describe_value, prints_to_stderr
from core_engine.config import EngineConfig, ModelConfig
from core_engine.errors import (
    BackendLoadError,
    ContractError,
    CoreEngineError,
    UnsupportedFeature,
    did_you_mean,
)
from core_engine.hookspecs.model_runner import ModelRunnerApi
from core_engine.hookspecs.worker import WorkerApi
from core_engine.plugin._backend_types import (
    BackendInfo,
    BackendOption,
    ConfigChange,
    Detection,
    DetectionState,
    DeviceInfo,
    WorkerPlan,
)
from core_engine.plugin._capabilities import Capabilities
from core_engine.plugin._compile_types import CompiledGraph, SizePool
from core_engine.plugin._probe import Probe
from core_engine.sampling.params import SamplingParams

if TYPE_CHECKING:
    from core_engine.worker.context import RunnerContext, WorkerContext
    from core_engine.worker.model_runner import ModelRunnerBase
    from core_engine.worker.worker import WorkerBase

__all__ = ["AppliedChange", "Backend"]

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class AppliedChange:
    """A setting that a backend changed, and why."""

    field: str
    old: Any
    new: Any
    reason: str

    @property
    def explanation(self) -> str:
        """What changed to what, and why."""
        return f"{self.old} → {self.new} ({self.reason})"

    def __str__(self) -> str:
        return f"{self.field}: {self.explanation}"


class Backend:
    """One loaded backend; every method is one hook of `core_engine.hookspecs.BackendSpec`.

    Each call checks what the plugin returns, field by field, and raises `ContractError`, naming
    plugin, hook, field and the type that came, where it does not fit. An error of core-engine's own
    that the plugin raises passes; any other but `KeyboardInterrupt` is raised as `BackendLoadError`
    that names plugin and hook. What a hook prints goes to stderr. ``backend_info`` and
    ``option_schema`` are called once, on construction.
    """

    def __init__(self, entry: InstalledPlugin, manager: pluggy.PluginManager, api: str) -> None:
        self.entry = entry
        #: The plugin API that the module states.
        self.api = api
        self._manager = manager
        self.info: BackendInfo = self._call("backend_info", BackendInfo)
        if self.info.name != entry.name:
            raise ContractError(
                f"{self} calls itself {self.info.name!r} in backend_info(); the name must be the entry "
                f"point's, {entry.name!r}"
            )
        self._options = self._call_tuple("option_schema", BackendOption)
        check_schema(self._options, str(self))

    @property
    def name(self) -> str:
        """The backend's name, which is the entry point's."""
        return self.entry.name

    def __str__(self) -> str:
        return self.entry.subject

    def __repr__(self) -> str:
        return f"<Backend {self.entry.name!r} of {self.entry}>"

    def detect(self, probe: Probe) -> Detection:
        """Ask whether the device is there."""
        detection = self._call("detect", Detection, probe=probe)
        indices = [device.index for device in detection.devices]
        if len(set(indices)) < len(indices) or any(index < 0 for index in indices):
            raise self._broken("detect", "devices with distinct indices from 0", indices)
        if detection.state is DetectionState.AVAILABLE and not indices:
            raise self._broken("detect", "at least one device where the state is available", detection)
        return detection

    def capabilities(
        self, devices: tuple[DeviceInfo, ...], config: EngineConfig, model: ModelConfig
    ) -> Capabilities:
        """Ask what works on ``devices`` under ``config``, before the device is opened."""
        options = self.parse_options(config.backend_options)
        return self._call(
            "capabilities", Capabilities, devices=devices, config=config, model=model, options=options
        )

    def option_schema(self) -> tuple[BackendOption, ...]:
        """List the backend's options; none when the plugin leaves the hook out."""
        return self._options

    def parse_options(self, texts: Mapping[str, str]) -> dict[str, OptionValue]:
        """Return the value of every option; see `core_engine.backends.options.parse_options`."""
        return parse_options(texts, self.option_schema(), self.name)

    def check_config(
        self, config: EngineConfig, model: ModelConfig, devices: tuple[DeviceInfo, ...]
    ) -> tuple[EngineConfig, tuple[AppliedChange, ...]]:
        """Return ``config`` with the backend's changes, and those that changed anything."""
        options = self.parse_options(config.backend_options)
        changes = self._call_tuple(
            "check_config", ConfigChange, config=config, model=model, devices=devices, options=options
        )
        applied = []
        for change in changes:
            self._check_change(change)
            old = getattr(config, change.field)
            if old == change.value:
                continue
            changed: dict[str, Any] = {change.field: change.value}
            config = dataclasses.replace(config, **changed)
            reason = f"backend {self.name!r}: {change.reason}"
            applied.append(AppliedChange(change.field, old, change.value, reason))
        return config, tuple(applied)

    def plan_workers(self, config: EngineConfig, devices: tuple[DeviceInfo, ...]) -> tuple[WorkerPlan, ...]:
        """Divide ``devices`` among worker processes, rank 0 first."""
        options = self.parse_options(config.backend_options)
        plans = self._call_tuple("plan_workers", WorkerPlan, config=config, devices=devices, options=options)
        if not plans or [plan.rank for plan in plans] != list(range(len(plans))):
            raise self._broken("plan_workers", "at least one WorkerPlan, ranks counted from 0", plans)
        known = {device.index for device in devices}
        for plan in plans:
            if unknown := set(plan.device_indices) - known:
                raise ContractError(
                    f"{self}: plan_workers gives rank {plan.rank} the devices {sorted(unknown)}, but "
                    f"detection found only {sorted(known)}"
                )
        return plans

    def create_worker(self, context: WorkerContext) -> WorkerBase:
        """Import the device's software and build the worker; only in the worker's process."""
        with torch_autoload_off():
            return self._call("create_worker", cast("type[WorkerBase]", WorkerApi), context=context)

    def create_model_runner(self, context: RunnerContext) -> ModelRunnerBase:
        """Build the model runner for the device that the worker opened."""
        return self._call(
            "create_model_runner", cast("type[ModelRunnerBase]", ModelRunnerApi), context=context
        )

    def validate_request(self, params: SamplingParams, num_prompt_tokens: int, config: EngineConfig) -> None:
        """Raise `UnsupportedFeature` for a request that the backend cannot serve."""
        if self._implements("validate_request"):
            self._call(
                "validate_request", bool, params=params, num_prompt_tokens=num_prompt_tokens, config=config
            )

    def doctor_rows(self, probe: Probe) -> tuple[tuple[str, str], ...]:
        """Return the backend's own (fact, value) pairs for ``core-engine doctor``."""
        rows = self._call_tuple("doctor_rows", tuple, probe=probe)
        for row in rows:
            if len(row) != 2 or not all(isinstance(text, str) for text in row):
                raise self._broken("doctor_rows", "(fact, value) pairs of str", row)
        if len({fact for fact, _ in rows}) < len(rows):
            raise self._broken("doctor_rows", "each fact once", rows)
        return cast("tuple[tuple[str, str], ...]", rows)

    def compile_target(self, target: str, texts: Mapping[str, str]) -> tuple[DeviceInfo, ...]:
        """Return the devices that ``target`` names; ``texts`` are the backend's options as given.

        Raises `UnsupportedFeature` for a backend without the compile check.
        """
        if not (self._implements("compile_target") and self._implements("compile_check")):
            raise UnsupportedFeature(f"{self} offers no compile check: it can only run where its device is")
        devices = self._call_tuple(
            "compile_target", DeviceInfo, target=target, options=self.parse_options(texts)
        )
        if not devices or any(not device.memory_bytes for device in devices):
            raise self._broken("compile_target", "at least one device, each with memory_bytes", devices)
        return devices

    def compile_check(
        self, context: WorkerContext, target: str, size_pool: SizePool
    ) -> tuple[CompiledGraph, ...]:
        """Compile the engine of ``context`` for ``target``."""
        with torch_autoload_off():
            return self._call_tuple(
                "compile_check", CompiledGraph, context=context, target=target, size_pool=size_pool
            )

    def _implements(self, hook: str) -> bool:
        return bool(getattr(self._manager.hook, hook).get_hookimpls())

    def _call(self, hook: str, expected: type[T], **arguments: Any) -> T:
        try:
            with prints_to_stderr():
                result = getattr(self._manager.hook, hook)(**arguments)
        except (CoreEngineError, KeyboardInterrupt):
            raise
        except BaseException as failure:
            raise BackendLoadError(f"{self}: hook {hook!r} raised {describe_failure(failure)}") from failure
        if not isinstance(result, expected):
            raise self._broken(hook, expected.__name__, result)
        return self._conform(hook, result, expected)

    def _call_tuple(self, hook: str, item: type[T], **arguments: Any) -> tuple[T, ...]:
        """Call a hook that returns a tuple of ``item``; a hook left out returns none."""
        if not self._implements(hook):
            return ()
        result = self._call(hook, tuple, **arguments)
        for value in result:
            if not isinstance(value, item):
                raise self._broken(hook, f"a tuple of {item.__name__}", value)
        return tuple(self._conform(hook, value, item) for value in result)

    def _conform(self, hook: str, value: T, expected: type[T]) -> T:
        """Check the fields of a dataclass; a value of any other type is checked by its own method."""
        if not dataclasses.is_dataclass(expected):
            return value
        try:
            return conform(value, expected)
        except FieldMismatch as mismatch:
            raise ContractError(f"{self}: hook {hook!r} must return {mismatch}") from None

    def _check_change(self, change: ConfigChange) -> None:
        hints = get_type_hints(EngineConfig)
        if change.field not in hints:
            raise ContractError(
                f"{self}: check_config changes {change.field!r}, which is no field of EngineConfig."
                f"{did_you_mean(change.field, hints)}"
            )
        try:
            msgspec.convert(change.value, hints[change.field])
        except msgspec.ValidationError as mismatch:
            raise ContractError(
                f"{self}: check_config cannot set {change.field!r} to {change.value!r}: {mismatch}"
            ) from None

    def _broken(self, hook: str, expected: str, got: object) -> ContractError:
        return ContractError(f"{self}: hook {hook!r} must return {expected}, got {describe_value(got)}")
