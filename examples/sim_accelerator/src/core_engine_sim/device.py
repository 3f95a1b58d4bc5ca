"""SimDevice: one opened device, which owns its memory and runs programs."""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np
import torch

from core_engine_sim.execution import Execution
from core_engine_sim.memory import DeviceMemory
from core_engine_sim.tensor import SimTensor

__all__ = ["SimDevice"]


class SimDevice:
    """What a worker holds after ``init_device``; nothing of it is shared with another device."""

    def __init__(self, index: int, memory_bytes: int) -> None:
        self.index = index
        self.memory = DeviceMemory(index, memory_bytes)

    def __str__(self) -> str:
        return f"sim:{self.index}"

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> SimTensor:
        """Allocate zeroed memory. Raises `OutOfDeviceMemory`."""
        num_bytes = torch.Size(shape).numel() * dtype.itemsize
        allocation = self.memory.allocate(num_bytes)
        # numpy leaves pages of zeros untouched until they are written, so large caches start at once.
        contents = torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(shape)
        return SimTensor(contents, self, allocation)

    def copy_from_host(self, tensor: torch.Tensor) -> SimTensor:
        """Copy a host tensor into device memory. Raises `OutOfDeviceMemory`."""
        allocation = self.memory.allocate(tensor.numel() * tensor.dtype.itemsize)
        contents = tensor.detach().clone(memory_format=torch.contiguous_format)
        return SimTensor(contents, self, allocation)

    def executing(self) -> AbstractContextManager[object]:
        """Return a context in which torch operations run on this device; only programs enter it."""
        return Execution(self)
