"""The light module: tells core-engine about the simulated device without importing torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core_engine.plugin import (
    MIN_MIXED_TOKENS,
    BackendInfo,
    BackendOption,
    Capabilities,
    ConfigChange,
    ConfigError,
    Detection,
    DetectionState,
    DeviceInfo,
    EngineConfig,
    ModelConfig,
    Probe,
    UnsupportedFeature,
    WorkerPlan,
    hookimpl,
    load_class,
    next_power_of_two,
    power_of_two_buckets,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from core_engine.plugin.runtime import ModelRunnerBase, RunnerContext, WorkerBase, WorkerContext

#: The plugin API that this module was written for.
CORE_ENGINE_API = "0.1"

DEVICES_VARIABLE = "CORE_ENGINE_SIM_DEVICES"
DEFAULT_DEVICES = "2"
DEFAULT_MEMORY_BYTES = 2 << 30
#: The most log-probabilities that the compiled sampler reports per token.
MAX_LOGPROBS = 20

_OPTIONS = (
    BackendOption(name="device", help="index of the simulated device to use", type="int", default=0),
    BackendOption(
        name="memory_bytes",
        help="memory of the device; more is never allocated",
        type="int",
        default=DEFAULT_MEMORY_BYTES,
    ),
    BackendOption(
        name="max_padded_tokens",
        help="tokens of the largest compiled step, a power of two",
        type="int",
        default=256,
    ),
    BackendOption(
        name="strict_shapes",
        help="refuse to compile after warm-up instead of counting it",
        type="bool",
        default=True,
    ),
    BackendOption(
        name="attention",
        help="the device's kernel: paged, or dense, which knows no pages and no step with prefill and decode",
        default="paged",
        choices=("paged", "dense"),
    ),
    BackendOption(
        name="mixed_batches",
        help="compute prompts in chunks and beside decodes; without it whole and by themselves",
        type="bool",
        default=True,
    ),
)


@hookimpl
def backend_info() -> BackendInfo:
    """Win over ``cpu`` wherever the package is installed."""
    return BackendInfo(name="sim", priority=50, description="Simulated static-shape accelerator")


@hookimpl
def option_schema() -> tuple[BackendOption, ...]:
    """List what ``--backend-option`` takes."""
    return _OPTIONS


@hookimpl
def detect(probe: Probe) -> Detection:
    """Find as many devices as the variable says; two where it is not set."""
    text = probe.environment.get(DEVICES_VARIABLE) or DEFAULT_DEVICES
    if not text.isdecimal():
        reason = f"{DEVICES_VARIABLE}={text!r} is no number of devices"
        return Detection(state=DetectionState.UNAVAILABLE, reason=reason)
    num_devices = int(text)
    if num_devices == 0:
        reason = f"{DEVICES_VARIABLE}=0 switches the simulated devices off"
        return Detection(state=DetectionState.UNAVAILABLE, reason=reason)
    devices = tuple(
        DeviceInfo(index=index, name=f"simulated accelerator {index}", details={"emulated_by": "host"})
        for index in range(num_devices)
    )
    return Detection(
        state=DetectionState.AVAILABLE, reason=f"{num_devices} simulated devices", devices=devices
    )


@hookimpl
def capabilities(config: EngineConfig, model: ModelConfig, options: Mapping[str, Any]) -> Capabilities:
    """Declare what the conformance kit may hold the backend to.

    With the dense kernel chunks are emulated and mixed steps divided, so both are declared all the same.
    Whatever computes several tokens after others in the cache is a chunk.
    """
    chunks = bool(options["mixed_batches"])
    smallest = min(MIN_MIXED_TOKENS, next_power_of_two(config.max_num_batched_tokens))
    return Capabilities(
        dtypes=("bfloat16", "float32"),
        block_sizes=(16,),
        chunked_prefill=chunks,
        mixed_batches=chunks,
        prefix_caching=chunks,
        sliding_window=True,
        max_logprobs=min(MAX_LOGPROBS, model.vocab_size),
        prompt_logprobs=True,
        graph_capture=True,
        draft_tokens=chunks,
        # Whatever the budget turns out to be, the steps up to it are padded to these.
        token_buckets=power_of_two_buckets(smallest, options["max_padded_tokens"]),
        lora=True,
    )


@hookimpl
def check_config(config: EngineConfig, options: Mapping[str, Any]) -> tuple[ConfigChange, ...]:
    """Keep the largest step within what the device compiles."""
    max_tokens = options["max_padded_tokens"]
    changes = []
    if max_tokens < 1 or max_tokens != next_power_of_two(max_tokens):
        raise ConfigError(f"max_padded_tokens must be a power of two, got {max_tokens}")
    if config.max_num_seqs > max_tokens:
        reason = f"the largest compiled step has {max_tokens} tokens (option max_padded_tokens)"
        changes.append(ConfigChange(field="max_num_seqs", value=max_tokens, reason=reason))
    budget = min(max_tokens, next_power_of_two(config.max_num_batched_tokens))
    if budget != config.max_num_batched_tokens:
        reason = f"steps are compiled for powers of two up to {max_tokens} (option max_padded_tokens)"
        changes.append(ConfigChange(field="max_num_batched_tokens", value=budget, reason=reason))
    return tuple(changes)


@hookimpl
def plan_workers(
    config: EngineConfig, devices: tuple[DeviceInfo, ...], options: Mapping[str, Any]
) -> tuple[WorkerPlan, ...]:
    """Give the one worker the device that was asked for."""
    if config.tensor_parallel_size != 1:
        raise UnsupportedFeature(
            f"tensor_parallel_size {config.tensor_parallel_size}: the sim backend runs a model on one device"
        )
    if options["device"] not in {device.index for device in devices}:
        raise ConfigError(
            f"there is no device {options['device']}: the sim backend has 0 to {len(devices) - 1}; "
            f"{DEVICES_VARIABLE} says how many"
        )
    return (WorkerPlan(rank=0, device_indices=(options["device"],)),)


@hookimpl
def create_worker(context: WorkerContext) -> WorkerBase:
    """Build the worker; the first heavy import."""
    worker: WorkerBase = load_class("core_engine_sim.worker:SimWorker")(context)
    return worker


@hookimpl
def create_model_runner(context: RunnerContext) -> ModelRunnerBase:
    """Build the model runner."""
    runner: ModelRunnerBase = load_class("core_engine_sim.model_runner:SimModelRunner")(context)
    return runner
