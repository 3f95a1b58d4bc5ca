"""The light module: tells core-engine about NVIDIA GPUs without importing torch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from core_engine.plugin import (
    BackendInfo,
    BackendOption,
    Capabilities,
    ConfigChange,
    Detection,
    DeviceInfo,
    EngineConfig,
    ModelConfig,
    Probe,
    UnsupportedFeature,
    WorkerPlan,
    hookimpl,
    load_class,
)
from core_engine_cuda.detection import UUID, detect_gpus
from core_engine_cuda.doctor import cuda_facts
from core_engine_cuda.graph_sizes import captured_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from core_engine.plugin.runtime import ModelRunnerBase, RunnerContext, WorkerBase, WorkerContext

CORE_ENGINE_API = "0.1"

#: What OpenAI's API allows; more columns cost every request of a step.
MAX_LOGPROBS = 20
#: Tokens of a block that the attention kernels read, the preferred number first.
BLOCK_SIZES = (16, 32, 64, 128)

_OPTIONS = (
    BackendOption(
        name="attention",
        default="triton",
        choices=("triton", "reference"),
        help="the Triton kernels, or plain torch, which is slow and serves every layer",
    ),
    BackendOption(
        name="sampler",
        default="triton",
        choices=("triton", "reference"),
        help="the Triton kernels, or plain torch, which sorts whole rows",
    ),
    BackendOption(
        name="graph_sizes",
        help="numbers of requests whose decode steps are captured as CUDA graphs, e.g. 1,2,4,8; by default "
        "1, 2, 4, 8, 16, 24 and so on up to max_num_seqs",
    ),
)


@hookimpl
def backend_info() -> BackendInfo:
    """Win over ``cpu`` where a GPU can be used."""
    return BackendInfo(name="cuda", priority=100, description="NVIDIA GPUs, with attention in Triton")


@hookimpl
def option_schema() -> tuple[BackendOption, ...]:
    """List what ``--backend-option`` takes."""
    return _OPTIONS


@hookimpl
def detect(probe: Probe) -> Detection:
    """Ask the driver's management library; no CUDA context is opened."""
    return detect_gpus(probe)


@hookimpl
def capabilities(devices: tuple[DeviceInfo, ...], config: EngineConfig, model: ModelConfig) -> Capabilities:
    """Declare what the kernels and the runner serve."""
    return Capabilities(
        dtypes=("bfloat16", "float16", "float32"),
        block_sizes=BLOCK_SIZES,
        chunked_prefill=True,
        mixed_batches=True,
        prefix_caching=True,
        sliding_window=True,
        max_logprobs=min(MAX_LOGPROBS, model.vocab_size),
        prompt_logprobs=True,
        graph_capture=True,
        lora=config.tensor_parallel_size == 1,
        draft_tokens=True,
        max_tensor_parallel_size=len(devices),
    )


@hookimpl
def check_config(config: EngineConfig, options: Mapping[str, Any]) -> tuple[ConfigChange, ...]:
    """Refuse sizes of graphs that are none; change nothing."""
    captured_sizes(options["graph_sizes"], config.max_num_seqs)
    return ()


@hookimpl
def plan_workers(config: EngineConfig, devices: tuple[DeviceInfo, ...]) -> tuple[WorkerPlan, ...]:
    """Plan one worker for each GPU, which sees that one alone.

    A GPU is named by its UUID, which does not depend on the order in which CUDA counts.
    """
    size = config.tensor_parallel_size
    if size > len(devices):
        raise UnsupportedFeature(
            f"tensor_parallel_size {size} needs {size} GPUs, and the cuda backend sees {len(devices)}"
        )
    # Ranks of one host find each other over the loopback; who set the variable knows better.
    shared = {"NCCL_SOCKET_IFNAME": "lo"} if size > 1 and "NCCL_SOCKET_IFNAME" not in os.environ else {}
    return tuple(
        WorkerPlan(
            rank=rank,
            device_indices=(device.index,),
            environment={"CUDA_VISIBLE_DEVICES": device.details[UUID], **shared},
        )
        for rank, device in enumerate(devices[:size])
    )


@hookimpl
def doctor_rows(probe: Probe) -> tuple[tuple[str, str], ...]:
    """Tell the versions and variables that decide what runs."""
    return cuda_facts(probe)


@hookimpl
def create_worker(context: WorkerContext) -> WorkerBase:
    """Build the worker; the first heavy import."""
    worker: WorkerBase = load_class("core_engine_cuda.worker:CudaWorker")(context)
    return worker


@hookimpl
def create_model_runner(context: RunnerContext) -> ModelRunnerBase:
    """Build the model runner."""
    runner: ModelRunnerBase = load_class("core_engine_cuda.model_runner:CudaModelRunner")(context)
    return runner
