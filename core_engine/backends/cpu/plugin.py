"""The built-in CPU backend's light module; it uses the same hooks as any vendor's."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING

from core_engine.backends.cpu.cores import usable_cores
from core_engine.backends.cpu.memory import available_bytes, total_bytes
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
    WorkerPlan,
    hookimpl,
    load_class,
)

if TYPE_CHECKING:
    from core_engine.plugin.runtime import ModelRunnerBase, RunnerContext, WorkerBase, WorkerContext

CORE_ENGINE_API = "0.1"

logger = logging.getLogger(__name__)

#: Features of x86 (flags) and Arm (Features) processors that multiply bfloat16 without widening it.
_BFLOAT16_FEATURES = ("amx_bf16", "avx512_bf16", "avx_ne_convert", "bf16")

#: More threads are asked for by mistake; OpenMP libraries crash where the system refuses to start one.
_MOST_THREADS = 1024
#: Ranks that a machine with fewer cores may have all the same, to try what needs more.
_RANKS_ANYWHERE = 8
#: Variables that say how many threads OpenMP, numba and the libraries beneath them use.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


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
def capabilities(devices: tuple[DeviceInfo, ...], config: EngineConfig) -> Capabilities:
    """Declare what the CPU backend serves.

    One rank computes with all cores; several divide them, and the memory. Every data type works, so a
    checkpoint keeps its own. The order matters only where a checkpoint's is none of them: bfloat16 comes
    first where the processor multiplies it, float32 elsewhere.
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
        draft_tokens=True,
        # Adapters are not divided among ranks.
        lora=config.tensor_parallel_size == 1,
        max_tensor_parallel_size=max(usable_cores(Probe()), _RANKS_ANYWHERE),
    )


@hookimpl
def option_schema() -> tuple[BackendOption, ...]:
    """List the options."""
    return (
        BackendOption(
            name="threads",
            type="int",
            help="threads that compute, in each rank; by default one per usable core over all ranks",
        ),
        BackendOption(
            name="attention",
            help="compiled by numba, in plain torch (reference), or torch's dense attention over gathered "
            "keys (dense); auto: numba where it is installed, else reference",
            default="auto",
            choices=("auto", "numba", "reference", "dense"),
        ),
    )


@hookimpl
def check_config(options: Mapping[str, str | int | float | bool | None]) -> tuple[ConfigChange, ...]:
    """Refuse a number of threads that cannot be or that the system may not survive."""
    threads = options["threads"]
    most = max(_MOST_THREADS, os.cpu_count() or 1)
    if isinstance(threads, int) and not 1 <= threads <= most:
        raise ConfigError(f"backend option threads is {threads}; it must be between 1 and {most}")
    return ()


@hookimpl
def plan_workers(config: EngineConfig) -> tuple[WorkerPlan, ...]:
    """Plan the ranks, which all compute on the one device."""
    num_ranks, cores = config.tensor_parallel_size, usable_cores(Probe())
    if num_ranks > cores:
        logger.warning(
            "%d ranks share %d cores: they wait for each other's turns, so fewer would be faster",
            num_ranks,
            cores,
        )
    return tuple(WorkerPlan(rank=rank, device_indices=(0,)) for rank in range(num_ranks))


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
        ("cores", f"{usable_cores(probe)} of {os.cpu_count()} usable"),
        ("memory", f"{_gibibytes(available_bytes(probe))} free of {_gibibytes(total_bytes(probe))}"),
        *((name, probe.environment.get(name, "(unset)")) for name in _THREAD_VARIABLES),
    )


def _gibibytes(num_bytes: int | None) -> str:
    return "unknown" if num_bytes is None else f"{num_bytes / 2**30:.1f} GiB"


def _processor(probe: Probe) -> dict[str, str]:
    """Return the facts that /proc/cpuinfo tells of the first processor; empty where there is none."""
    first, _, _ = (probe.read_text("/proc/cpuinfo") or "").partition("\n\n")
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
