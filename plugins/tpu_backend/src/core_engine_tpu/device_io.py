"""TpuIO: every byte that crosses between the host and the TPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

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
from core_engine_tpu.faults import typed_faults
from core_engine_tpu.runtime import XlaRuntime
from core_engine_tpu.weights import PlacedWeights, place_weights

__all__ = ["TpuIO"]


class TpuIO(DeviceIO):
    """Copies numpy arrays to the device and results back; nothing is sliced or indexed on the way."""

    def __init__(self, runtime: XlaRuntime) -> None:
        self._runtime = runtime
        #: What ``place_model`` did; None before.
        self.weights: PlacedWeights | None = None

    def upload(self, step: HostStep) -> DeviceStep:
        """Copy each array of the step, with execution forbidden: an upload must not run a graph."""
        with typed_faults("the inputs of a step"), self._runtime.forbid_execution():
            return upload_each(step, self._upload_array)

    def download(self, tensors: Mapping[str, torch.Tensor]) -> Download:
        """Copy whole result tensors to the host; callers slice there."""
        with typed_faults("the download of results"):
            return ReadyDownload({name: tensor.cpu().numpy() for name, tensor in tensors.items()})

    def synchronize(self) -> None:
        """Wait for the device."""
        with typed_faults("the work given to the device"):
            self._runtime.synchronize()

    def memory_info(self) -> MemoryInfo:
        """Report the device's memory; None where it does not tell."""
        memory = self._runtime.memory()
        if memory is None:
            return MemoryInfo(total_bytes=None, free_bytes=None)
        total, used = memory
        return MemoryInfo(total_bytes=total, free_bytes=total - used)

    def measure_peak(self, run: Callable[[], None]) -> int:
        """Run, and return what the most that was ever in use exceeds what was in use before.

        The device tells one peak for the whole life of the process, so this may be more than ``run`` took,
        never less. 0 where it tells none.
        """
        before = self._runtime.memory()
        run()
        peak = self._runtime.peak_memory()
        return 0 if before is None or peak is None else max(0, peak - before[1])

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Allocate zeroed device memory."""
        with typed_faults(f"a tensor {list(shape)} of {dtype}"):
            return self._runtime.zeros(shape, dtype)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Overwrite a device tensor; see `DeviceIO.copy`."""
        with typed_faults("the copy of a tensor"):
            self._runtime.overwrite(target, source)

    def place_model(self, model: torch.nn.Module) -> torch.nn.Module:
        """Move the model's tensors to the device, or divide them over several."""
        with typed_faults("the model's weights"):
            self.weights = place_weights(model, self._runtime)
        return model

    def _upload_array(self, array: Array) -> torch.Tensor:
        uploaded = self._runtime.upload(torch.from_numpy(np.ascontiguousarray(array)))
        # Over several devices graphs are traced for annotations, and traced again where one is missing.
        return self._runtime.divide(uploaded, None)
