"""The backend ``cuda-host``: core-engine-cuda over the fake GPU of `host_runtime`, chosen by name only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from core_engine_cuda import plugin
from core_engine_cuda.model_runner import CudaModelRunner
from core_engine_cuda.worker import CudaWorker
from host_runtime import HostRuntime

from core_engine.plugin import BackendInfo, Detection, DetectionState, DeviceInfo, Probe, WorkerPlan, hookimpl

CORE_ENGINE_API = plugin.CORE_ENGINE_API


class HostWorker(CudaWorker):
    """Opens the fake; several ranks talk through gloo, whose sums no recorded graph would hold."""

    def open_runtime(self) -> HostRuntime:
        runtime = HostRuntime()
        runtime.reruns_python = self.context.world_size > 1
        return runtime


@hookimpl
def backend_info() -> BackendInfo:
    return BackendInfo(name="cuda-host", priority=1, description="core-engine-cuda over a fake GPU")


@hookimpl
def detect(probe: Probe) -> Detection:
    devices = tuple(
        DeviceInfo(index=index, name="fake GPU", memory_bytes=8 << 30, details={"uuid": f"GPU-{index}"})
        for index in range(2)
    )
    return Detection(state=DetectionState.BY_NAME_ONLY, reason="a fake", devices=devices)


@hookimpl
def capabilities(devices: Any, config: Any, model: Any) -> Any:
    return plugin.capabilities(devices, config, model)


@hookimpl
def option_schema() -> Any:
    return plugin.option_schema()


@hookimpl
def check_config(config: Any, options: Any) -> Any:
    return plugin.check_config(config, options)


@hookimpl
def plan_workers(config: Any, devices: Any) -> tuple[WorkerPlan, ...]:
    plans = plugin.plan_workers(config, devices)
    # In this process no variable may stay behind.
    return plans if len(plans) > 1 else (replace(plans[0], environment={}),)


@hookimpl
def create_worker(context: Any) -> HostWorker:
    return HostWorker(context)


@hookimpl
def create_model_runner(context: Any) -> CudaModelRunner:
    return CudaModelRunner(context)
