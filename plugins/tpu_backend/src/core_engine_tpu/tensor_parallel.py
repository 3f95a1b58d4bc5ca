"""What tensor parallelism asks of a model and of the devices; light, asked before anything is opened."""

from __future__ import annotations

from core_engine.plugin import ConfigError, DeviceInfo, EngineConfig, ModelConfig, UnsupportedFeature

__all__ = ["check_devices", "check_heads", "possible_sizes"]


def possible_sizes(num_heads: int, num_kv_heads: int, num_devices: int) -> tuple[int, ...]:
    """Return the numbers of devices, up to ``num_devices``, that divide both kinds of heads evenly."""
    return tuple(
        size for size in range(1, num_devices + 1) if num_heads % size == 0 and num_kv_heads % size == 0
    )


def check_heads(config: EngineConfig, model: ModelConfig, num_devices: int) -> None:
    """Raise `ConfigError` where the model's heads cannot be divided, naming the sizes that would work.

    Each device holds whole heads of keys and values and the queries that read them. Layers that differ
    from what the model's config says are found when it is loaded.
    """
    size = config.tensor_parallel_size
    num_heads, num_kv_heads = model.num_attention_heads, model.num_kv_heads or model.num_attention_heads
    possible = possible_sizes(num_heads, num_kv_heads, num_devices)
    if size in possible or size > num_devices:
        return
    raise ConfigError(
        f"tensor_parallel_size {size} does not divide the {num_heads} query heads and {num_kv_heads} K/V "
        f"heads of {model.architecture} evenly; with as many devices these sizes do: "
        f"{', '.join(map(str, possible))}"
    )


def check_devices(config: EngineConfig, devices: tuple[DeviceInfo, ...]) -> tuple[DeviceInfo, ...]:
    """Return the devices to use: the first one, or all of them.

    XLA's partitioner divides a program over every device that the process sees, so anything between is
    refused with `UnsupportedFeature`, as is more than there are.
    """
    size = config.tensor_parallel_size
    if size == 1:
        return devices[:1]
    if size == len(devices):
        return devices
    if size > len(devices):
        raise UnsupportedFeature(
            f"tensor_parallel_size {size} needs {size} devices of one host, and the tpu backend sees "
            f"{len(devices)}"
        )
    visible = ",".join(str(index) for index in range(size))
    raise UnsupportedFeature(
        f"tensor_parallel_size {size} of {len(devices)} devices: a program is divided over all devices that "
        f"the process sees. Set it to {len(devices)} or 1, or show the process {size} devices: "
        f"CPU_NUM_DEVICES={size} with PJRT_DEVICE=CPU; on a TPU VM TPU_VISIBLE_CHIPS={visible} with the "
        "TPU_CHIPS_PER_PROCESS_BOUNDS and TPU_PROCESS_BOUNDS that belong to it; for a compile check name a "
        f"target of {size} chips"
    )
