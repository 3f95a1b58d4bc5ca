"""The light module: tells core-engine about TPUs without importing torch or torch_xla."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core_engine.plugin import (
    BackendInfo,
    BackendOption,
    Capabilities,
    CompiledGraph,
    ConfigChange,
    ConfigError,
    Detection,
    DeviceInfo,
    EngineConfig,
    ModelConfig,
    Probe,
    SizePool,
    UnsupportedFeature,
    WorkerPlan,
    hookimpl,
    load_class,
)
from core_engine_tpu.buckets import request_buckets, token_buckets
from core_engine_tpu.chips import parse_target
from core_engine_tpu.detection import HOST_DEVICE, detect_tpus, missing_for_compile_check
from core_engine_tpu.doctor import tpu_facts
from core_engine_tpu.kernel_limits import kernel_block_sizes
from core_engine_tpu.tensor_parallel import check_devices

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from core_engine.plugin.runtime import ModelRunnerBase, RunnerContext, WorkerBase, WorkerContext

CORE_ENGINE_API = "0.1"

#: The most log-probabilities that the compiled sampler reports per token.
MAX_LOGPROBS = 20
DEFAULT_MEMORY_BYTES = 2 << 30

_OPTIONS = (
    BackendOption(
        name="memory_bytes",
        type="int",
        default=DEFAULT_MEMORY_BYTES,
        help="memory of each device for weights, activations and KV cache, where it cannot tell (PJRT CPU)",
    ),
    BackendOption(
        name="token_buckets",
        help="tokens of the steps that are compiled, e.g. 16,64,256; by default powers of two from 16 to 512",
    ),
    BackendOption(
        name="request_buckets",
        help="requests of the decode steps that are compiled; by default powers of two",
    ),
    BackendOption(
        name="attention",
        default="auto",
        choices=("auto", "pallas", "dense"),
        help="the Pallas kernel, dense attention, or the kernel on a TPU wherever it serves the model",
    ),
    BackendOption(
        name="compile_cache",
        default="auto",
        help="folder that keeps compiled graphs between starts, or off; auto: one on a TPU, none on the host",
    ),
    BackendOption(
        name="recompilation",
        default="warn",
        choices=("warn", "error"),
        help="what a compilation after warm-up does: warn once and name the shapes, or fail the step",
    ),
)


@hookimpl
def backend_info() -> BackendInfo:
    """Win over ``cpu`` on a TPU VM."""
    return BackendInfo(name="tpu", priority=100, description="Google TPU through torch_xla")


@hookimpl
def option_schema() -> tuple[BackendOption, ...]:
    """List what ``--backend-option`` takes."""
    return _OPTIONS


@hookimpl
def detect(probe: Probe) -> Detection:
    """Look for chips on the PCI bus and for a torch that torch_xla can be loaded into."""
    return detect_tpus(probe)


@hookimpl
def capabilities(
    devices: tuple[DeviceInfo, ...], config: EngineConfig, model: ModelConfig, options: Mapping[str, Any]
) -> Capabilities:
    """Declare what the compiled graphs serve."""
    buckets = token_buckets(options["token_buckets"])
    # Dense attention has no preference, and small blocks share more prefixes.
    is_dense = options["attention"] == "dense" or devices[0].name.startswith(HOST_DEVICE)
    longest = 1 if is_dense else config.max_model_len or model.max_position_embeddings or 1
    return Capabilities(
        dtypes=("bfloat16", "float32"),
        block_sizes=kernel_block_sizes(config.max_num_seqs, longest),
        chunked_prefill=True,
        mixed_batches=True,
        prefix_caching=True,
        sliding_window=True,
        max_logprobs=min(MAX_LOGPROBS, model.vocab_size),
        prompt_logprobs=True,
        graph_capture=True,
        lora=True,
        draft_tokens=True,
        # A budget between two buckets is a bucket of its own.
        token_buckets=tuple(sorted({*buckets, min(config.max_num_batched_tokens, buckets[-1])})),
        max_tensor_parallel_size=len(devices),
    )


@hookimpl
def check_config(config: EngineConfig, options: Mapping[str, Any]) -> tuple[ConfigChange, ...]:
    """Keep the largest step within what is compiled."""
    if options["memory_bytes"] < 1:
        raise ConfigError(f"memory_bytes must be at least 1, got {options['memory_bytes']}")
    request_buckets(options["request_buckets"])  # may refuse
    most = token_buckets(options["token_buckets"])[-1]
    reason = f"the largest step that is compiled has {most} tokens (option token_buckets)"
    return tuple(
        ConfigChange(field=field, value=most, reason=reason)
        for field in ("max_num_seqs", "max_num_batched_tokens")
        if getattr(config, field) > most
    )


@hookimpl
def plan_workers(config: EngineConfig, devices: tuple[DeviceInfo, ...]) -> tuple[WorkerPlan, ...]:
    """Plan one worker that owns every device the model is divided over."""
    chosen = check_devices(config, devices)
    return (WorkerPlan(rank=0, device_indices=tuple(device.index for device in chosen)),)


@hookimpl
def doctor_rows(probe: Probe) -> tuple[tuple[str, str], ...]:
    """Tell the versions and variables that decide what runs."""
    return tpu_facts(probe)


@hookimpl
def create_worker(context: WorkerContext) -> WorkerBase:
    """Build the worker; the first heavy import."""
    worker: WorkerBase = load_class("core_engine_tpu.worker:TpuWorker")(context)
    return worker


@hookimpl
def create_model_runner(context: RunnerContext) -> ModelRunnerBase:
    """Build the model runner."""
    runner: ModelRunnerBase = load_class("core_engine_tpu.model_runner:TpuModelRunner")(context)
    return runner


@hookimpl
def compile_target(target: str) -> tuple[DeviceInfo, ...]:
    """Return the chips of ``KIND:AxB``."""
    return parse_target(target).devices()


@hookimpl
def compile_check(context: WorkerContext, target: str, size_pool: SizePool) -> tuple[CompiledGraph, ...]:
    """Compile the engine's graphs with libtpu, which needs no TPU for that."""
    missing = missing_for_compile_check(Probe())
    if missing is not None:
        raise UnsupportedFeature(missing)
    compile_engine = load_class("core_engine_tpu.compile_check:compile_engine")
    graphs: tuple[CompiledGraph, ...] = compile_engine(context, parse_target(target), size_pool)
    return graphs
