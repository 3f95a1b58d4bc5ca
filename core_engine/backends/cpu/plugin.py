"""The built-in CPU backend's light module; it uses the same hooks as any vendor's."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from core_engine.plugin import (
    BackendInfo,
    BackendOption,
    Capabilities,
    Detection,
    DetectionState,
    DeviceInfo,
    EngineConfig,
    Probe,
    UnsupportedFeature,
    WorkerPlan,
    hookimpl,
    load_class,
)

CORE_ENGINE_API = "0.1"


@hookimpl
def backend_info() -> BackendInfo:
    """Name the backend; its priority is the lowest, so any available accelerator comes first."""
    return BackendInfo(name="cpu", priority=0, description="this machine's processor")


@hookimpl
def detect(probe: Probe) -> Detection:
    """Report the processor; it is always there."""
    device = DeviceInfo(index=0, name=_processor_name(probe), memory_bytes=_memory_bytes(probe))
    return Detection(state=DetectionState.AVAILABLE, reason="every machine has a CPU", devices=(device,))


@hookimpl
def capabilities() -> Capabilities:
    """Declare what the CPU backend serves."""
    return Capabilities(
        dtypes=("bfloat16", "float32", "float16"),
        block_sizes=(16, 32, 64, 128),
        chunked_prefill=True,
        mixed_batches=True,
        prefix_caching=True,
        sliding_window=True,
        max_logprobs=20,
        prompt_logprobs=True,
    )


@hookimpl
def option_schema() -> tuple[BackendOption, ...]:
    """List the options."""
    return (BackendOption(name="threads", type="int", help="threads that compute; by default one per core"),)


@hookimpl
def plan_workers(config: EngineConfig) -> tuple[WorkerPlan, ...]:
    """Plan one worker for the one device."""
    if config.tensor_parallel_size != 1:
        raise UnsupportedFeature(
            f"tensor_parallel_size {config.tensor_parallel_size} is not offered by backend 'cpu'; use 1"
        )
    return (WorkerPlan(rank=0, device_indices=(0,)),)


@hookimpl
def create_worker(context: Any) -> Any:
    """Build the worker."""
    return load_class("core_engine.backends.cpu.worker:CpuWorker")(context)


@hookimpl
def create_model_runner(context: Any) -> Any:
    """Build the model runner."""
    return load_class("core_engine.backends.cpu.runner:CpuModelRunner")(context)


def _processor_name(probe: Probe) -> str:
    for line in (probe.read_text("/proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_bytes(probe: Probe) -> int | None:
    facts: Mapping[str, str] = dict(
        line.split(":", 1) for line in (probe.read_text("/proc/meminfo") or "").splitlines() if ":" in line
    )
    total = facts.get("MemTotal")
    return int(total.split()[0]) * 1024 if total else None
