"""The built-in CPU backend's light module; it uses the same hooks as any vendor's."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING

from core_engine.backends.cpu.memory import total_bytes
from core_engine.plugin import (
    BackendInfo,
    BackendOption,
    Capabilities,
    ConfigChange,
    ConfigError,
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

if TYPE_CHECKING:
    from core_engine.plugin.runtime import ModelRunnerBase, RunnerContext, WorkerBase, WorkerContext

CORE_ENGINE_API = "0.1"

#: Features of x86 (flags) and Arm (Features) processors that multiply bfloat16 without widening it.
_BFLOAT16_FEATURES = ("amx_bf16", "avx512_bf16", "avx_ne_convert", "bf16")


@hookimpl
def backend_info() -> BackendInfo:
    """Name the backend; its priority is the lowest, so any available accelerator comes first."""
    return BackendInfo(name="cpu", priority=0, description="this machine's processor")


@hookimpl
def detect(probe: Probe) -> Detection:
    """Report the processor; it is always there."""
    facts = _processor(probe)
    name = facts.get("model name") or platform.processor() or platform.machine()
    features = (facts.get("flags") or facts.get("Features") or "").split()
    bfloat16 = next((feature for feature in _BFLOAT16_FEATURES if feature in features), "emulated")
    device = DeviceInfo(index=0, name=name, memory_bytes=total_bytes(probe), details={"bfloat16": bfloat16})
    return Detection(state=DetectionState.AVAILABLE, reason="every machine has a CPU", devices=(device,))


@hookimpl
def capabilities(devices: tuple[DeviceInfo, ...]) -> Capabilities:
    """Declare what the CPU backend serves.

    Every data type works, so a checkpoint keeps its own. The order matters only where a checkpoint's
    is none of them: bfloat16 comes first where the processor multiplies it, float32 elsewhere.
    """
    fast_bfloat16 = devices[0].details.get("bfloat16") != "emulated"
    return Capabilities(
        dtypes=("bfloat16", "float32", "float16") if fast_bfloat16 else ("float32", "bfloat16", "float16"),
        block_sizes=(32, 16, 64, 128),
        chunked_prefill=True,
        mixed_batches=True,
        prefix_caching=True,
        sliding_window=True,
        # What OpenAI's API allows; more columns cost every request of a step.
        max_logprobs=20,
        prompt_logprobs=True,
    )


@hookimpl
def option_schema() -> tuple[BackendOption, ...]:
    """List the options."""
    return (
        BackendOption(
            name="threads",
            type="int",
            help="threads that compute; by default one per usable core",
        ),
        BackendOption(
            name="attention",
            help="attention compiled by numba, or in plain torch; auto: numba where it is installed",
            default="auto",
            choices=("auto", "numba", "reference"),
        ),
    )


@hookimpl
def check_config(options: Mapping[str, str | int | float | bool | None]) -> tuple[ConfigChange, ...]:
    """Refuse a number of threads that cannot be."""
    threads = options["threads"]
    if isinstance(threads, int) and threads < 1:
        raise ConfigError(f"backend option threads is {threads}; it must be at least 1")
    return ()


@hookimpl
def plan_workers(config: EngineConfig) -> tuple[WorkerPlan, ...]:
    """Plan one worker for the one device."""
    if config.tensor_parallel_size != 1:
        raise UnsupportedFeature(
            f"tensor_parallel_size {config.tensor_parallel_size} is not offered by backend 'cpu'; use 1: "
            "one process uses all cores"
        )
    return (WorkerPlan(rank=0, device_indices=(0,)),)


@hookimpl
def create_worker(context: WorkerContext) -> WorkerBase:
    """Build the worker."""
    worker: WorkerBase = load_class("core_engine.backends.cpu.worker:CpuWorker")(context)
    return worker


@hookimpl
def create_model_runner(context: RunnerContext) -> ModelRunnerBase:
    """Build the model runner."""
    runner: ModelRunnerBase = load_class("core_engine.backends.cpu.runner:CpuModelRunner")(context)
    return runner


@hookimpl
def doctor_rows(probe: Probe) -> tuple[tuple[str, str], ...]:
    """Tell what decides the CPU's speed."""
    numba = probe.distribution_version("numba")
    devices = detect(probe).devices
    return (
        ("kernels", f"numba {numba}" if numba else "plain torch; pip install 'core-engine[cpu]' is faster"),
        ("bfloat16", devices[0].details["bfloat16"]),
    )


def _processor(probe: Probe) -> dict[str, str]:
    """Return the facts that /proc/cpuinfo tells of the first processor; empty where there is none."""
    first, _, _ = (probe.read_text("/proc/cpuinfo") or "").partition("\n\n")
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
