"""What tensor parallelism asks of the devices; light, asked before anything is opened."""

from __future__ import annotations

from core_engine.plugin import DeviceInfo, EngineConfig, UnsupportedFeature

__all__ = ["check_devices"]


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
