"""Pinned host memory that is lent in turn, so that nothing is overwritten while a copy reads it."""

from __future__ import annotations

from core_engine.plugin import next_power_of_two
from core_engine.plugin.runtime import Array
from core_engine_cuda.runtime import CudaRuntime, Mark

__all__ = ["HostBuffer", "HostBuffers", "buffer_bytes"]

#: Smaller buffers are rounded up to this.
_LEAST_BYTES = 64 << 10


class HostBuffer:
    """Pinned memory, as a tensor for copies and as an array for the host; it grows by being made anew."""

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._last_copy: Mark | None = None
        self.tensor = runtime.pinned(0)
        self.array: Array = self.tensor.numpy()

    def reserve(self, num_bytes: int) -> None:
        """Wait until the last copy is done, and make room."""
        if self._last_copy is not None:
            self._last_copy.wait()
            self._last_copy = None
        if num_bytes > len(self.array):
            self.tensor = self._runtime.pinned(buffer_bytes(num_bytes))
            self.array = self.tensor.numpy()

    def in_use_until(self, mark: Mark) -> None:
        """Note the copy that was given to the device last."""
        self._last_copy = mark


class HostBuffers:
    """Several buffers for uploads: while one is copied, the next step is written into another."""

    def __init__(self, runtime: CudaRuntime, count: int) -> None:
        self._buffers = [HostBuffer(runtime) for _ in range(count)]
        self._next = 0

    def take(self, num_bytes: int) -> HostBuffer:
        """Return the buffer that was taken longest ago, once nothing reads it any more."""
        buffer = self._buffers[self._next]
        self._next = (self._next + 1) % len(self._buffers)
        buffer.reserve(num_bytes)
        return buffer


def buffer_bytes(num_bytes: int) -> int:
    """Return the size of the buffer for so many bytes: a power of two, so that few sizes serve all."""
    return max(_LEAST_BYTES, next_power_of_two(max(1, num_bytes)))
