"""DeviceIO: every byte that crosses between host and device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from core_engine._ragged import Array
from core_engine.worker.reports import MemoryInfo
from core_engine.worker.step import SAMPLING_ARRAYS, DeviceStep, HostStep

if TYPE_CHECKING:
    import torch

__all__ = ["DeviceIO", "Download", "ReadyDownload", "upload_each"]


class Download(Protocol):
    """Arrays on their way to the host."""

    def arrays(self, timeout_s: float | None = None) -> Mapping[str, Array]:
        """Wait for the copy and return it. Raises `StepTimeout` or `DeviceLost`."""
        ...


class ReadyDownload:
    """A download that has already arrived."""

    __slots__ = ("_arrays",)

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays

    def arrays(self, timeout_s: float | None = None) -> Mapping[str, Array]:
        """Return the arrays at once."""
        return self._arrays


class DeviceIO(ABC):
    """Moves data for one device; nothing else in a runner touches host and device memory at once."""

    @abstractmethod
    def upload(self, step: HostStep) -> DeviceStep:
        """Copy a prepared step to the device; the host arrays may be reused once it returns."""

    @abstractmethod
    def download(self, tensors: Mapping[str, torch.Tensor]) -> Download:
        """Start copying small result tensors to the host."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all work given to the device is done. Raises `DeviceLost`."""

    @abstractmethod
    def memory_info(self) -> MemoryInfo:
        """Report the device's memory."""

    @abstractmethod
    def measure_peak(self, run: Callable[[], None]) -> int:
        """Call ``run`` and return the most bytes that were in use beyond those held before; 0 if unknown."""

    @abstractmethod
    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Allocate zeroed device memory. Raises `OutOfDeviceMemory` with what was asked and what is free."""

    @abstractmethod
    def place_model(self, model: torch.nn.Module) -> torch.nn.Module:
        """Bring a model whose weights were read on the host onto the device; may return the same object."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Overwrite a device tensor with a host tensor of equal shape and dtype, after the work given so far.

        The tensor stays the same object in the same memory, so that programs which read it go on to.
        The default serves every device into whose tensors torch can copy from the host.
        """
        target.copy_(source)

    @property
    def weight_device(self) -> str:
        """Where the loader reads weights to; "cpu" unless the device can be a direct target."""
        return "cpu"


def upload_each(step: HostStep, to_device: Callable[[Array], torch.Tensor]) -> DeviceStep:
    """Build the device step by one ``to_device`` call per array, for devices where copies are cheap."""
    sampling = {
        name: to_device(array)
        for name in SAMPLING_ARRAYS
        if (array := getattr(step.sampling, name)) is not None
    }
    return DeviceStep(
        shape=step.shape,
        token_ids=to_device(step.token_ids),
        positions=to_device(step.positions),
        logits_rows=to_device(step.logits_rows),
        prompt_rows=tuple(map(to_device, step.prompt_rows)),
        prompt_targets=tuple(map(to_device, step.prompt_targets)),
        attention=tuple(
            {name: to_device(array) for name, array in group.items()} for group in step.attention
        ),
        sampling=sampling,
        sampling_kind=step.sampling.kind,
        lora_slots=None if step.lora_slots is None else to_device(step.lora_slots),
    )
