"""The light door for vendors: everything that a backend's entry-point module needs, without torch.

A backend is one small module that states the API it was written for and marks a few functions::

    from core_engine.plugin import BackendInfo, Detection, DetectionState, hookimpl, load_class

    CORE_ENGINE_API = "0.1"

    @hookimpl
    def backend_info():
        return BackendInfo(name="acme", priority=100, description="Acme NPU")

The bases and seams of the worker and the model runner stand behind the second door,
`core_engine.plugin.runtime`, which imports torch. Nothing else of core-engine is promised to vendors.
"""

from core_engine.config import DTYPE_BYTES, EngineConfig, ModelConfig
from core_engine.errors import (
    AdapterError,
    BackendLoadError,
    ConfigError,
    ContractError,
    CoreEngineError,
    DeviceLost,
    DoesNotFit,
    EngineError,
    OutOfDeviceMemory,
    StepTimeout,
    UnsupportedFeature,
    UnsupportedModel,
)
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
from core_engine.plugin._load_class import load_class
from core_engine.plugin._markers import hookimpl, runner_hookimpl, worker_hookimpl
from core_engine.plugin._probe import Probe
from core_engine.plugin._version import API_VERSION
from core_engine.worker.bucket_shapes import MIN_MIXED_TOKENS, next_power_of_two, power_of_two_buckets

__all__ = [
    "API_VERSION",
    "DTYPE_BYTES",
    "MIN_MIXED_TOKENS",
    "AdapterError",
    "BackendInfo",
    "BackendLoadError",
    "BackendOption",
    "Capabilities",
    "CompiledGraph",
    "ConfigChange",
    "ConfigError",
    "ContractError",
    "CoreEngineError",
    "Detection",
    "DetectionState",
    "DeviceInfo",
    "DeviceLost",
    "DoesNotFit",
    "EngineConfig",
    "EngineError",
    "ModelConfig",
    "OutOfDeviceMemory",
    "Probe",
    "SizePool",
    "StepTimeout",
    "UnsupportedFeature",
    "UnsupportedModel",
    "WorkerPlan",
    "hookimpl",
    "load_class",
    "next_power_of_two",
    "power_of_two_buckets",
    "runner_hookimpl",
    "worker_hookimpl",
]
