"""CudaRuntime: every call of ``torch.cuda``, so that all else runs and is tested without a GPU."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch

from core_engine.plugin import EngineError
from core_engine_cuda.faults import Faults

__all__ = ["CudaRuntime", "Graph", "Mark", "wait_until"]

logger = logging.getLogger("core_engine.backends.cuda")

#: Between two looks at an event that has a deadline: short at first, then rarely.
_FIRST_SLEEP_S, _LONGEST_SLEEP_S = 50e-6, 1e-3


class Mark(Protocol):
    """A place in the order of the device's work."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the device has come so far; False where it has not within ``timeout_s`` seconds."""
        ...


class Graph(Protocol):
    """Work that was captured and can be given to the device again in one call."""

    def replay(self) -> None:
        """Do the work once more, with what the captured tensors hold now."""
        ...


class CudaRuntime:
    """One opened GPU. All work is given to torch's current stream, so it is done in the order it is given.

    ``uuid`` is the GPU's, as detection found it; the first GPU is taken where none matches, which is the
    only one in a process that was started for it.
    """

    #: What `TorchCommunicator` joins the ranks of GPUs with.
    communicator_kind = "nccl"

    def __init__(self, uuid: str = "") -> None:
        if not torch.cuda.is_available():
            raise EngineError(
                f"torch {torch.__version__} finds no GPU, though the driver does: `python -c 'import torch; "
                "torch.cuda.init()'` tells why"
            )
        self.device = torch.device("cuda", _index_of(uuid))
        self.faults = Faults(self.describe_memory, self.release_cached)
        properties = torch.cuda.get_device_properties(self.device)
        self.name = str(properties.name)
        self.capability = (int(properties.major), int(properties.minor))
        self.num_multiprocessors = int(properties.multi_processor_count)
        self._pool: Any = None
        with self.working("its first operation"):
            # Creates the context, and fails where this torch holds no code for the GPU.
            torch.zeros(1, device=self.device).add_(1)
            torch.cuda.synchronize(self.device)

    @contextmanager
    def working(self, doing: str) -> Iterator[None]:
        """Make the GPU current for this thread, and raise typed errors for what fails within the block.

        Raises `DeviceLost` at once when the GPU was lost before.
        """
        with self.faults.typed(doing), torch.cuda.device(self.device):
            yield

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """Return page-locked host memory, uint8 ``[num_bytes]``, from which and to which copies can be
        asynchronous."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Allocate zeroed memory of the GPU."""
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy after the work given so far; returns before it is done where the host's side is pinned."""
        target.copy_(source, non_blocking=True)

    def mark(self) -> Mark:
        """Mark the end of the work given so far."""
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call] # torch leaves it open
        event.record(torch.cuda.current_stream(self.device))
        return _EventMark(event)

    def synchronize(self) -> None:
        """Wait for all work given so far."""
        torch.cuda.synchronize(self.device)

    def memory(self) -> tuple[int, int]:
        """Return the bytes of the GPU that are free, for any process, and all that it has."""
        free, total = torch.cuda.mem_get_info(self.device)
        return int(free), int(total)

    def unreserved_bytes(self) -> int:
        """Return what is in use on the GPU outside of torch's allocator: contexts, code, other processes."""
        free, total = self.memory()
        return total - free - int(torch.cuda.memory_reserved(self.device))

    def describe_memory(self) -> str:
        """Say what is free and who has how much, for error messages."""
        free, total = self.memory()
        ours = int(torch.cuda.memory_reserved(self.device))
        gib = 1 << 30
        return (
            f"of {total / gib:.2f} GiB {free / gib:.2f} are free, {ours / gib:.2f} are this engine's and "
            f"{(total - free - ours) / gib:.2f} belong to CUDA and to other programs"
        )

    def measure_peak(self, run: Callable[[], None]) -> int:
        """Call ``run`` and return by how many bytes torch's tensors exceeded what they took before."""
        torch.cuda.reset_peak_memory_stats(self.device)
        before = int(torch.cuda.memory_allocated(self.device))
        run()
        self.synchronize()
        return max(0, int(torch.cuda.max_memory_allocated(self.device)) - before)

    def release_cached(self) -> None:
        """Give memory that torch keeps for later allocations back to the driver."""
        torch.cuda.empty_cache()

    def begin_graphs(self) -> None:
        """Take a new pool for the memory of the graphs captured from now on, which they share."""
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def refusing_waits(self) -> Iterator[None]:
        """Have torch raise `RuntimeError` where an operation of the block waits for the GPU.

        A capture that fails for it costs more: torch before 2.12 takes it for underway ever after. What
        torch does not watch (its prototype of this covers no torch.distributed) passes. The mode is the
        whole process's, so a program's own operations in other threads are refused for as long.
        """
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this is a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def capture(self, run: Callable[[], None]) -> Graph:
        """Capture what ``run`` gives to the device, without doing it; the tensors it reads and writes stay.

        Other threads may use the GPU meanwhile: NCCL's watch their own events.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            # torch leaves its own stream current when a capture fails.
            with (
                torch.cuda.stream(torch.cuda.current_stream(self.device)),
                torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
            ):
                run()
        except RuntimeError:
            self._end_capture()
            raise
        return graph

    def _end_capture(self) -> None:
        """Tell torch's allocator that a failed capture is over, as releases before 2.12 leave out.

        Else nothing can be given back to the driver any more (https://github.com/pytorch/pytorch/pull/180395).
        """
        end: Any = getattr(torch._C, "_cuda_endAllocateToPool", None)
        if end is not None:
            with suppress(RuntimeError):  # where torch has done it itself
                end(self.device.index, self._pool)


class _EventMark:
    """A mark that is a CUDA event."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self, timeout_s: float | None = None) -> bool:
        """See `Mark.wait`."""
        if timeout_s is None:
            self._event.synchronize()
            return True
        return wait_until(self._event.query, timeout_s)


def wait_until(is_done: Callable[[], bool], timeout_s: float) -> bool:
    """Ask ``is_done`` until it says so or ``timeout_s`` seconds have passed; return its last answer."""
    deadline_s = time.monotonic() + timeout_s
    sleep_s = _FIRST_SLEEP_S
    while not is_done():
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(sleep_s, left_s))
        sleep_s = min(2 * sleep_s, _LONGEST_SLEEP_S)
    return True


def _index_of(uuid: str) -> int:
    """Return torch's number of the GPU with that UUID, 0 where none has it."""
    for index in range(torch.cuda.device_count()):
        found = getattr(torch.cuda.get_device_properties(index), "uuid", None)
        if found is not None and uuid.removeprefix("GPU-") == str(found):
            return index
    if torch.cuda.device_count() > 1:
        logger.warning("no GPU that torch sees has the UUID %s; the first is taken", uuid)
    return 0
