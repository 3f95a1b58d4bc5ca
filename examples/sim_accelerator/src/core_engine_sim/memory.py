"""The memory of one simulated device: a hard limit and exact accounts. Torch-free."""

from __future__ import annotations

from core_engine.plugin import OutOfDeviceMemory

__all__ = ["Allocation", "DeviceMemory"]


class DeviceMemory:
    """Counts the bytes of every live allocation of one device and refuses what exceeds its limit."""

    def __init__(self, device_index: int, limit_bytes: int) -> None:
        self.device_index = device_index
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        #: The most bytes in use since the last ``reset_peak``.
        self.peak_bytes = 0

    @property
    def free_bytes(self) -> int:
        """Bytes that can still be allocated."""
        return self.limit_bytes - self.used_bytes

    def allocate(self, num_bytes: int) -> Allocation:
        """Reserve ``num_bytes``; they are free again when the returned object is deleted.

        Raises `OutOfDeviceMemory` with what was asked, what is in use and the limit; nothing changes then.
        """
        if num_bytes > self.free_bytes:
            raise OutOfDeviceMemory(
                f"sim:{self.device_index} cannot allocate {num_bytes} bytes: {self.used_bytes} of "
                f"{self.limit_bytes} bytes are in use, {self.free_bytes} are free. Lower max_num_seqs, "
                "max_model_len or kv_cache_bytes, or raise --backend-option memory_bytes"
            )
        self.used_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return Allocation(self, num_bytes)

    def reset_peak(self) -> None:
        """Start a new measurement of ``peak_bytes`` from what is in use now."""
        self.peak_bytes = self.used_bytes


class Allocation:
    """A piece of device memory, shared by all tensors that view it; freed with the last of them."""

    __slots__ = ("memory", "num_bytes")

    def __init__(self, memory: DeviceMemory, num_bytes: int) -> None:
        self.memory = memory
        self.num_bytes = num_bytes

    def __del__(self) -> None:
        self.memory.used_bytes -= self.num_bytes
