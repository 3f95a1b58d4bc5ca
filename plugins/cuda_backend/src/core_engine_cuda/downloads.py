"""Results on their way to the host: packed on the GPU, copied once, read when they have arrived."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from core_engine.plugin import StepTimeout
from core_engine.plugin.runtime import Array
from core_engine_cuda.host_buffers import HostBuffer, buffer_bytes
from core_engine_cuda.packing import Layout, plan_layout, read_arrays
from core_engine_cuda.runtime import CudaRuntime, Mark

__all__ = ["CudaDownload", "Downloads"]


class Downloads:
    """Starts downloads; a host buffer belongs to one download until its arrays were read."""

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._idle: list[HostBuffer] = []
        self._packed: dict[int, torch.Tensor] = {}

    def start(self, tensors: Mapping[str, torch.Tensor]) -> CudaDownload:
        """Pack ``tensors`` and give their copy to the GPU; returns before it is done."""
        layout = plan_layout(
            tuple(
                (tuple(tensor.shape), torch.empty(0, dtype=tensor.dtype).numpy().dtype)
                for tensor in tensors.values()
            )
        )
        host = self._idle.pop() if self._idle else HostBuffer(self._runtime)
        host.reserve(layout.num_bytes)
        if layout.num_bytes:
            packed = self._pack(layout, tuple(tensors.values()))
            self._runtime.copy(host.tensor[: layout.num_bytes], packed)
        return CudaDownload(self, tuple(tensors), layout, host, self._runtime.mark())

    def finish(self, host: HostBuffer, mark: Mark, timeout_s: float | None) -> None:
        """Wait for a copy, then take its buffer back once the caller has read it. Raises `StepTimeout`."""
        with self._runtime.working("the computation of a step"):
            if not mark.wait(timeout_s):
                raise StepTimeout(f"the GPU did not finish a step within {timeout_s} s")

    def give_back(self, host: HostBuffer) -> None:
        """Lend ``host`` to a later download."""
        self._idle.append(host)

    def _pack(self, layout: Layout, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return uint8 ``[layout.num_bytes]``; a single result needs no packing."""
        if len(tensors) == 1 and tensors[0].is_contiguous():
            return tensors[0].flatten().view(torch.uint8)
        size = buffer_bytes(layout.num_bytes)
        if size not in self._packed:
            self._packed[size] = self._runtime.zeros((size,), torch.uint8)
        packed = self._packed[size]
        for place, tensor in zip(layout.places, tensors, strict=True):
            target = packed[place.start : place.stop].view(tensor.dtype).view(place.shape)
            self._runtime.copy(target, tensor)
        return packed[: layout.num_bytes]


class CudaDownload:
    """One step's results; see `core_engine.plugin.runtime.Download`."""

    def __init__(
        self, downloads: Downloads, names: tuple[str, ...], layout: Layout, host: HostBuffer, mark: Mark
    ) -> None:
        self._downloads = downloads
        self._names = names
        self._layout = layout
        self._host = host
        self._mark = mark
        self._arrays: Mapping[str, Array] | None = None

    def arrays(self, timeout_s: float | None = None) -> Mapping[str, Array]:
        """Wait for the copy and return it; the same on every call. Raises `StepTimeout` or `DeviceLost`."""
        if self._arrays is None:
            self._downloads.finish(self._host, self._mark, timeout_s)
            self._arrays = dict(zip(self._names, read_arrays(self._layout, self._host.array), strict=True))
            self._downloads.give_back(self._host)
        return self._arrays
