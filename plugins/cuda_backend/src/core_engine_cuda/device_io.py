"""CudaIO: every byte that crosses between the host and the GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

import numpy as np
import torch

from core_engine.plugin.runtime import (
    Array,
    DeviceIO,
    DeviceStep,
    Download,
    HostStep,
    MemoryInfo,
    upload_each,
)
from core_engine_cuda.downloads import Downloads
from core_engine_cuda.host_buffers import HostBuffers, buffer_bytes
from core_engine_cuda.packing import Layout, Signature, plan_layout, signature_of, write_arrays
from core_engine_cuda.runtime import CudaRuntime

__all__ = ["CudaIO", "Region"]

#: Host buffers for uploads: one is written, one is copied, one is done.
_NUM_HOST_BUFFERS = 3
#: Layouts of steps without a captured shape come and go; beyond this many all are forgotten.
_MAX_LAYOUTS = 1024

_NOTHING = torch.empty(0)


class Region:
    """Memory of the GPU for the arrays of one upload after the other.

    Arrays of equal shapes and data types lie at equal addresses every time, which graphs rely on: a
    buffer, once made for a size, stays.
    """

    def __init__(self, runtime: CudaRuntime, hosts: HostBuffers) -> None:
        self._runtime = runtime
        self._hosts = hosts
        self._buffers: dict[int, torch.Tensor] = {}
        self._known: dict[Signature, tuple[Layout, tuple[torch.Tensor, ...]]] = {}

    def upload(self, arrays: Sequence[Array]) -> tuple[torch.Tensor, ...]:
        """Copy ``arrays`` in one piece, after the work given so far; returns before the copy is done."""
        if not arrays:
            return ()
        signature = signature_of(arrays)
        known = self._known.get(signature)
        if known is None:
            known = self._place(signature)
        layout, views = known
        host = self._hosts.take(layout.num_bytes)
        write_arrays(layout, arrays, host.array)
        target = self._buffer(layout.num_bytes)
        self._runtime.copy(target[: layout.num_bytes], host.tensor[: layout.num_bytes])
        host.in_use_until(self._runtime.mark())
        return views

    def _place(self, signature: Signature) -> tuple[Layout, tuple[torch.Tensor, ...]]:
        if len(self._known) >= _MAX_LAYOUTS:
            self._known.clear()
        layout = plan_layout(signature)
        buffer = self._buffer(layout.num_bytes)
        views = tuple(
            buffer[place.start : place.stop].view(_torch_dtype(place.dtype)).view(place.shape)
            for place in layout.places
        )
        self._known[signature] = layout, views
        return layout, views

    def _buffer(self, num_bytes: int) -> torch.Tensor:
        size = buffer_bytes(num_bytes)
        if size not in self._buffers:
            self._buffers[size] = self._runtime.zeros((size,), torch.uint8)
        return self._buffers[size]


class CudaIO(DeviceIO):
    """Copies a step in one piece, its results in one piece back, both without waiting.

    What every step has and what only some have (penalties, biases, prompts to score) lie apart: the
    addresses of the first do not depend on the second.
    """

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        hosts = HostBuffers(runtime, _NUM_HOST_BUFFERS)
        self._common = Region(runtime, hosts)
        self._extras = Region(runtime, hosts)
        self._downloads = Downloads(runtime)

    def upload(self, step: HostStep) -> DeviceStep:
        """Copy what the programs read; see `DeviceIO.upload`."""
        arrays: list[Array] = []

        def note(array: Array) -> torch.Tensor:
            arrays.append(array)
            return _NOTHING

        upload_each(step, note)
        rare = {id(array) for array in _rare_arrays(step)}
        with self._runtime.working("the inputs of a step"):
            common = iter(self._common.upload([array for array in arrays if id(array) not in rare]))
            extras = iter(self._extras.upload([array for array in arrays if id(array) in rare]))
        return upload_each(step, lambda array: next(extras if id(array) in rare else common))

    def download(self, tensors: Mapping[str, torch.Tensor]) -> Download:
        """Start copying results; see `DeviceIO.download`."""
        with self._runtime.working("the results of a step"):
            return self._downloads.start(tensors)

    def synchronize(self) -> None:
        """Wait for the GPU."""
        with self._runtime.working("the work given to it"):
            self._runtime.synchronize()

    def memory_info(self) -> MemoryInfo:
        """Report the GPU's memory; free is what no program has taken."""
        free, total = self._runtime.memory()
        return MemoryInfo(total_bytes=total, free_bytes=free)

    def measure_peak(self, run: Callable[[], None]) -> int:
        """Measure the growth of torch's tensors at their most."""
        with self._runtime.working("the largest step"):
            return self._runtime.measure_peak(run)

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Allocate zeroed memory of the GPU."""
        num_bytes = torch.Size(shape).numel() * dtype.itemsize
        with self._runtime.working(f"a tensor {list(shape)} of {dtype} ({num_bytes / 2**20:,.1f} MiB)"):
            return self._runtime.zeros(shape, dtype)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Overwrite a tensor in its place; see `DeviceIO.copy`."""
        with self._runtime.working("the copy of a tensor"):
            target.copy_(source)

    def place_model(self, model: torch.nn.Module) -> torch.nn.Module:
        """Move what was read on the host."""
        with self._runtime.working("the model's weights"):
            return model.to(self._runtime.device)

    @property
    def weight_device(self) -> str:
        """The GPU itself: weights are not gathered on the host first.

        transformers reads straight to a device through accelerate only.
        """
        return "cpu" if find_spec("accelerate") is None else str(self._runtime.device)


def _rare_arrays(step: HostStep) -> list[Array]:
    sampling = step.sampling
    optional = (sampling.penalties, sampling.prompt_mask, sampling.output_counts, sampling.bias)
    return [*(array for array in optional if array is not None), *step.prompt_rows, *step.prompt_targets]


def _torch_dtype(dtype: np.dtype[np.generic]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
