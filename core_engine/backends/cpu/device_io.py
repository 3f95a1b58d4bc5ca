"""CpuIO: the host's memory is the device's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from core_engine.backends.cpu.memory import available_bytes, measure_peak, total_bytes
from core_engine.plugin import OutOfDeviceMemory
from core_engine.plugin.runtime import (
    Array,
    DeviceIO,
    DeviceStep,
    Download,
    HostStep,
    MemoryInfo,
    ReadyDownload,
    upload_each,
)

__all__ = ["CpuIO"]


class CpuIO(DeviceIO):
    """Hands numpy arrays over as tensors, and results back as arrays, without copying.

    The runner prepares new arrays for every step and the step is computed before ``execute_model``
    returns: nothing is overwritten while it is read, every download has arrived, and
    ``synchronize`` has nothing to wait for.
    """

    def upload(self, step: HostStep) -> DeviceStep:
        """Wrap what the programs read."""
        return upload_each(step, _as_tensor)

    def download(self, tensors: Mapping[str, torch.Tensor]) -> Download:
        """Return views: the sampler makes new tensors in every step."""
        return ReadyDownload({name: tensor.numpy() for name, tensor in tensors.items()})

    def synchronize(self) -> None:
        """Return at once: nothing runs in the background."""

    def memory_info(self) -> MemoryInfo:
        """Report what this process may use, container limits included."""
        return MemoryInfo(total_bytes=total_bytes(), free_bytes=available_bytes())

    def measure_peak(self, run: Callable[[], None]) -> int:
        """Measure the growth of the resident memory."""
        return measure_peak(run)

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Allocate zeroed memory; refuse what exceeds the free memory rather than be killed for it."""
        wanted = torch.Size(shape).numel() * dtype.itemsize
        free = available_bytes()
        if free is not None and wanted > free:
            raise OutOfDeviceMemory(_no_room(wanted, free))
        try:
            # numpy's zeros are pages that the kernel gives on first touch; torch's would all be written now.
            return torch.from_numpy(np.zeros(wanted, dtype=np.uint8)).view(dtype).view(shape)
        except MemoryError as error:
            raise OutOfDeviceMemory(_no_room(wanted, free)) from error

    def place_model(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return ``model``: it already is where it computes."""
        return model


def _as_tensor(array: Array) -> torch.Tensor:
    # torch cannot mark a tensor as read-only and warns when it wraps such an array.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _no_room(wanted: int, free: int | None) -> str:
    known = "" if free is None else f"; {free / 2**20:.0f} MiB are free"
    return (
        f"the CPU backend asked for {wanted / 2**20:.0f} MiB of memory{known}. Lower max_model_len, "
        "max_num_seqs or kv_cache_bytes, or give the process more memory"
    )
