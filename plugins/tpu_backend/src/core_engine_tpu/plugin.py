"""The light module: tells core-engine about TPUs without importing torch or torch_xla."""

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

CORE_ENGINE_API = "0.1"

#: Google's number in the PCI register.
GOOGLE_PCI_VENDOR = "0x1ae0"
#: The most log-probabilities that the compiled sampler reports per token.
MAX_LOGPROBS = 20
DEFAULT_MEMORY_BYTES = 2 << 30

_OPTIONS = (
    BackendOption(
        name="memory_bytes",
        type="int",
        default=DEFAULT_MEMORY_BYTES,
        help="memory for weights, activations and KV cache where the device cannot tell (PJRT CPU)",
    ),
    BackendOption(
        name="max_padded_tokens",
        type="int",
        default=512,
        help="tokens of the largest compiled step, a power of two",
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
    """Look for chips on the PCI bus and for a torch that torch_xla can be loaded into.

    ``PJRT_DEVICE=CPU`` runs the same graphs on the host; such a backend is served when it is asked for
    by name only.
    """
    refusal = _missing_software(probe)
    if refusal is not None:
        return Detection(state=DetectionState.UNAVAILABLE, reason=refusal)
    if probe.environment.get("PJRT_DEVICE", "").upper() == "CPU":
        count = int(probe.environment.get("CPU_NUM_DEVICES") or 1)
        devices = tuple(DeviceInfo(index=index, name=f"PJRT CPU device {index}") for index in range(count))
        return Detection(
            state=DetectionState.BY_NAME_ONLY,
            reason="PJRT_DEVICE=CPU: the TPU's graphs run on the host",
            devices=devices,
        )
    chips = probe.pci_vendors.count(GOOGLE_PCI_VENDOR)
    if chips == 0:
        return Detection(
            state=DetectionState.UNAVAILABLE,
            reason="no TPU on the PCI bus; PJRT_DEVICE=CPU runs its graphs on the host",
        )
    if probe.distribution_version("libtpu") is None:
        return Detection(
            state=DetectionState.UNAVAILABLE,
            reason=f"{chips} TPU chips, but libtpu is not installed: pip install 'core-engine-tpu[libtpu]'",
        )
    devices = tuple(DeviceInfo(index=index, name=f"TPU chip {index}") for index in range(chips))
    return Detection(state=DetectionState.AVAILABLE, reason=f"{chips} TPU chips", devices=devices)


def _missing_software(probe: Probe) -> str | None:
    torch, torch_xla = probe.distribution_version("torch"), probe.distribution_version("torch_xla")
    if torch_xla is None:
        return "torch_xla is not installed: pip install 'core-engine[tpu]'"
    if torch is None or not torch.startswith("2.9."):
        return f"needs torch 2.9, the only one that torch_xla {torch_xla} fits; installed is torch {torch}"
    return None


@hookimpl
def capabilities(config: EngineConfig, model: ModelConfig, options: Mapping[str, Any]) -> Capabilities:
    """Declare what the compiled graphs serve."""
    smallest = min(MIN_MIXED_TOKENS, next_power_of_two(config.max_num_batched_tokens))
    return Capabilities(
        dtypes=("bfloat16", "float32"),
        block_sizes=(16, 32),
        chunked_prefill=True,
        mixed_batches=True,
        prefix_caching=True,
        sliding_window=True,
        max_logprobs=min(MAX_LOGPROBS, model.vocab_size),
        prompt_logprobs=True,
        graph_capture=True,
        # Whatever the budget turns out to be, the steps up to it are padded to these.
        token_buckets=power_of_two_buckets(smallest, options["max_padded_tokens"]),
    )


@hookimpl
def check_config(config: EngineConfig, options: Mapping[str, Any]) -> tuple[ConfigChange, ...]:
    """Keep the largest step within what is compiled."""
    most = options["max_padded_tokens"]
    if most < MIN_MIXED_TOKENS or most != next_power_of_two(most):
        raise ConfigError(
            f"max_padded_tokens must be a power of two of at least {MIN_MIXED_TOKENS}, got {most}"
        )
    if options["memory_bytes"] < 1:
        raise ConfigError(f"memory_bytes must be at least 1, got {options['memory_bytes']}")
    changes = []
    if config.max_num_seqs > most:
        reason = f"the largest compiled step has {most} tokens (option max_padded_tokens)"
        changes.append(ConfigChange(field="max_num_seqs", value=most, reason=reason))
    budget = min(most, next_power_of_two(config.max_num_batched_tokens))
    if budget != config.max_num_batched_tokens:
        reason = f"steps are compiled for powers of two up to {most} (option max_padded_tokens)"
        changes.append(ConfigChange(field="max_num_batched_tokens", value=budget, reason=reason))
    return tuple(changes)


@hookimpl
def plan_workers(config: EngineConfig, devices: tuple[DeviceInfo, ...]) -> tuple[WorkerPlan, ...]:
    """Plan one worker."""
    if config.tensor_parallel_size != 1:
        raise UnsupportedFeature(
            f"tensor_parallel_size {config.tensor_parallel_size}: this version of the tpu backend runs a "
            "model on one device"
        )
    return (WorkerPlan(rank=0, device_indices=(devices[0].index,)),)


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
