"""XlaRuntime: every call into torch_xla, so that its successor can take its place."""

from __future__ import annotations

import gc
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch

from core_engine.plugin import EngineError
from core_engine_tpu.pallas_kernel import check_jax
from core_engine_tpu.runtime_kernels import ragged_paged_attention
from core_engine_tpu.runtime_partitioner import divided, local_part, whole_of
from core_engine_tpu.runtime_spmd import Spmd, is_spmd_on

__all__ = ["XlaRuntime"]

F = TypeVar("F", bound=Callable[..., object])

#: torch_xla would choose a device by itself where nothing is said.
_DEVICE_VARIABLE = "PJRT_DEVICE"
#: More graphs than any set of buckets has.
_MAX_GRAPHS = 4096


class XlaRuntime:
    """Opens the device; importing torch_xla writes variables and starts its client, so it happens here.

    With more than one device, tensors and programs are divided over ``num_devices`` that look like one.
    """

    #: What torch_xla records, and whether it may run, belongs to the process: one engine at a time.
    _turn: ClassVar[threading.RLock] = threading.RLock()
    _open: ClassVar[weakref.WeakSet[XlaRuntime]] = weakref.WeakSet()

    def __init__(self, num_devices: int = 1) -> None:
        # As detection reads it; torch_xla takes capitals only, and an empty value for none.
        os.environ[_DEVICE_VARIABLE] = os.environ.get(_DEVICE_VARIABLE, "").strip().upper() or "TPU"
        if num_devices > 1:
            Spmd.quiet_compiler()
        import torch._dynamo

        with _root_logger_kept():
            import torch_xla
            import torch_xla.debug.metrics
            import torch_xla.runtime

        # Every bucket is a compilation of the same function; dynamo would give up after eight.
        torch._dynamo.config.recompile_limit = _MAX_GRAPHS
        torch._dynamo.config.accumulated_recompile_limit = _MAX_GRAPHS
        self._xla: Any = torch_xla
        self._metrics: Any = torch_xla.debug.metrics
        self.num_devices = num_devices
        self._spmd = Spmd(num_devices) if num_devices > 1 else None
        if self._spmd is None and is_spmd_on():
            raise EngineError(
                "this process divides programs over several XLA devices, and the runtime cannot go back to "
                "one: start this model in a process of its own (--executor process does)"
            )
        self.device: torch.device = torch_xla.device()
        self.is_tpu: bool = torch_xla.runtime.device_type() == "TPU"
        self._open.add(self)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other engines of this process, which run in other threads, from the device meanwhile."""
        with self._turn:
            yield

    def close(self) -> None:
        """Let go of the compiled graphs, which hold the memory of their last arguments.

        Dynamo can only forget the graphs of a whole process, so it does with the last engine that closes.
        """
        with self._turn:
            self._open.discard(self)
            if not self._open:
                torch._dynamo.reset()
                gc.collect()

    def compile(self, fn: F) -> F:
        """Return ``fn`` as a function that is one graph per shape of its arguments."""
        if self._spmd is not None:
            return self._spmd.compile(fn)
        return torch.compile(fn, backend="openxla", fullgraph=True, dynamic=False)  # type: ignore[return-value]

    def donate(self, tensor: torch.Tensor) -> None:
        """Let the graph under way overwrite the memory of ``tensor``."""
        torch.ops.xla.dynamo_set_buffer_donor_(tensor, True)

    @property
    def runs_pallas(self) -> bool:
        """Tell whether the graphs of this process are for a TPU, which runs Pallas kernels."""
        return self.is_tpu

    def prepare_kernels(self) -> None:
        """Make the kernels ready to be traced. Raises `BackendLoadError` where jax cannot be imported."""
        check_jax()

    def ragged_paged_attention(
        self,
        query: torch.Tensor,
        pages: torch.Tensor,
        kv_lens: torch.Tensor,
        page_indices: torch.Tensor,
        query_start: torch.Tensor,
        num_seqs: torch.Tensor,
        *,
        scale: float,
        sliding_window: int | None,
        soft_cap: float | None,
        pages_at_once: int,
        queries_at_once: int,
    ) -> torch.Tensor:
        """Attend by the Pallas kernel; traces anywhere, runs on a TPU.

        ``query`` is ``[T, num_heads, head_dim]``, ``pages`` as in `KVLayout`, and int32 are ``kv_lens``
        ``[R]``, ``page_indices`` ``[R, width]``, ``query_start`` ``[R + 1]`` and ``num_seqs`` ``[1]``. Only
        the first ``num_seqs`` rows count, and none of them has more queries than keys. Returns the shape
        of ``query``; rows of tokens that no request owns are arbitrary, NaN included.
        """
        attended: torch.Tensor = ragged_paged_attention(
            query,
            pages,
            kv_lens,
            page_indices,
            query_start,
            num_seqs,
            scale,
            sliding_window,
            soft_cap,
            pages_at_once,
            queries_at_once,
        )
        return attended

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a host tensor to the device."""
        return tensor.to(self.device)

    def divide(self, tensor: torch.Tensor, dim: int | None) -> torch.Tensor:
        """Divide a tensor over the devices along ``dim``, or hold it whole on each (None); returns it.

        To be called right after `upload`, or on a tensor that is not computed yet.
        """
        return tensor if self._spmd is None else self._spmd.divide(tensor, dim)

    def divided(self, tensor: torch.Tensor, dim: int | None) -> torch.Tensor:
        """Within a graph, let a tensor be divided along ``dim``, or be whole on every device (None)."""
        same: torch.Tensor = divided(tensor, dim, self.num_devices)
        return same

    def local_part(self, tensor: torch.Tensor, dim: int | None) -> torch.Tensor:
        """Within a graph, return each device's own part along ``dim``, or all of the tensor (None).

        What is computed from it each device computes by itself, until `whole_of`.
        """
        part: torch.Tensor = local_part(tensor, dim, self.num_devices)
        return part

    def whole_of(self, part: torch.Tensor, dim: int | None) -> torch.Tensor:
        """Return the tensor whose parts along ``dim`` the devices have computed."""
        whole: torch.Tensor = whole_of(part, dim, self.num_devices)
        return whole

    def zeros(
        self, shape: tuple[int, ...], dtype: torch.dtype, *, divided_dim: int | None = None
    ) -> torch.Tensor:
        """Allocate zeroed memory, divided over the devices along ``divided_dim``."""
        tensor = self.divide(torch.zeros(shape, dtype=dtype, device=self.device), divided_dim)
        try:
            self.synchronize()
        except RuntimeError:
            del tensor  # the error's traceback would keep it, and each later synchronisation try again
            self._forget_failure()
            raise
        return tensor

    def synchronize(self) -> None:
        """Run what was recorded and wait for it."""
        self._xla.sync(wait=True)

    def overwrite(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Give a device tensor, which is whole on every device, the values of a host tensor."""
        if self._spmd is None:
            target.copy_(source)
        else:  # what is copied loses its annotation, and graphs are traced for annotations
            self._spmd.replace(target, self.divide(self.upload(source), None))

    def _forget_failure(self) -> None:
        """Take the second report of a failure: torch_xla raises each again at the next wait."""
        with suppress(RuntimeError):
            self._xla.core.xla_model.wait_device_ops()

    def num_graphs(self) -> int:
        """Count the compiled graphs that the process holds."""
        count: int = self._xla.runtime.get_num_cached_compilation_graph()
        return count

    def num_compilations(self) -> int:
        """Count the compilations since the process began."""
        return int(self._metrics.counter_value("UncachedCompile") or 0)

    def fallbacks(self) -> tuple[str, ...]:
        """Name the operators that torch has computed on the host because XLA could not."""
        return tuple(sorted(name for name in self._metrics.counter_names() if name.startswith("aten::")))

    def open_compile_cache(self, folder: Path) -> bool:
        """Keep compiled graphs in ``folder``; False where this process has computed already: too late."""
        if self._xla._XLAC._xla_computation_cache_is_initialized():
            return False
        self._xla.runtime.initialize_cache(str(folder))
        return True

    def memory(self) -> tuple[int, int] | None:
        """Return (total, used) bytes of the device, or None where it does not tell.

        PJRT on the CPU does not, nor torch_xla for several devices at once.
        """
        info = self._memory_info()
        return None if info is None else (int(info["bytes_limit"]), int(info["bytes_used"]))

    def peak_memory(self) -> int | None:
        """Return the most bytes that were ever in use on the device, or None where it does not tell."""
        info = self._memory_info()
        return None if info is None else int(info["peak_bytes_used"])

    def _memory_info(self) -> Mapping[str, int] | None:
        if not self.is_tpu or self._spmd is not None:
            return None
        info: Mapping[str, int] = self._xla.core.xla_model.get_memory_info(self.device)
        return info

    @contextmanager
    def forbid_execution(self) -> Iterator[None]:
        """Raise where device work is started within the block: inputs are prepared on the host alone."""
        self._xla._XLAC._set_allow_execution(False)
        try:
            yield
        finally:
            self._xla._XLAC._set_allow_execution(True)


@contextmanager
def _root_logger_kept() -> Iterator[None]:
    """Take back the handler that importing torch_xla gives the root logger: all lines would show twice."""
    root = logging.getLogger()
    handlers = list(root.handlers)
    try:
        yield
    finally:
        root.handlers[:] = handlers
