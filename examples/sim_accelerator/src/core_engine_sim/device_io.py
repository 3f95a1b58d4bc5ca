"""SimIO: every byte that crosses between the host and a simulated device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy.typing as npt
import torch

from core_engine.plugin.runtime import (
    DeviceIO,
    DeviceStep,
    Download,
    HostStep,
    MemoryInfo,
    ReadyDownload,
    upload_each,
)
from core_engine_sim.device import SimDevice
from core_engine_sim.errors import WrongDeviceError
from core_engine_sim.tensor import SimTensor

__all__ = ["SimIO"]


class SimIO(DeviceIO):
    """Copies numpy arrays to one device and back."""

    def __init__(self, device: SimDevice) -> None:
        self._device = device

    def upload(self, step: HostStep) -> DeviceStep:
        """Copy each array of the step."""
        return upload_each(step, self._upload_array)

    def download(self, tensors: Mapping[str, torch.Tensor]) -> Download:
        """Copy results to the host; the device computes at once, so they have arrived."""
        return ReadyDownload({name: self._download_tensor(tensor) for name, tensor in tensors.items()})

    def synchronize(self) -> None:
        """Return at once: programs have ended when their call returns."""

    def memory_info(self) -> MemoryInfo:
        """Report the exact accounts of the device."""
        memory = self._device.memory
        return MemoryInfo(total_bytes=memory.limit_bytes, free_bytes=memory.free_bytes)

    def measure_peak(self, run: Callable[[], None]) -> int:
        """Return the exact peak of ``run`` above what is allocated now."""
        memory = self._device.memory
        held = memory.used_bytes
        memory.reset_peak()
        run()
        return memory.peak_bytes - held

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Allocate zeroed device memory. Raises `OutOfDeviceMemory`."""
        return self._device.zeros(shape, dtype)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Overwrite device memory in place; the host may reuse ``source`` once it returns."""
        if not isinstance(target, SimTensor) or target.sim_device is not self._device:
            raise WrongDeviceError(f"{self._device} cannot write to {target!r}, which is not in its memory")
        target.contents.copy_(source)

    def place_model(self, model: torch.nn.Module) -> torch.nn.Module:
        """Move parameters and buffers one by one, so that each host copy is freed as it goes.

        Tensors that several modules share (tied embeddings) are moved once and stay shared.
        """
        placed: dict[torch.Tensor, torch.Tensor] = {}
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    if parameter not in placed:
                        contents = self._device.copy_from_host(parameter)
                        placed[parameter] = torch.nn.Parameter(contents, requires_grad=False)
                    module._parameters[name] = placed[parameter]  # type: ignore[assignment]
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    if buffer not in placed:
                        placed[buffer] = self._device.copy_from_host(buffer)
                    module._buffers[name] = placed[buffer]
        return model

    def _upload_array(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return self._device.copy_from_host(torch.from_numpy(array))

    def _download_tensor(self, tensor: torch.Tensor) -> npt.NDArray[Any]:
        if not isinstance(tensor, SimTensor) or tensor.sim_device is not self._device:
            raise WrongDeviceError(f"{self._device} cannot download {tensor!r}, which is not in its memory")
        return tensor.contents.numpy().copy()
