"""A fake GPU: the host's memory and processor stand in for every call of ``torch.cuda``.

It shows that the plugin works out the same tokens, lends its buffers rightly and replays the right graphs.
It shows nothing of CUDA itself: no stream, no pinned memory, no real graph is behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from core_engine_cuda.faults import Faults
from core_engine_cuda.runtime import CudaRuntime, Graph
from recorded_graph import RecordedGraph, WaitRefused

__all__ = ["GIB", "DoneMark", "HostRuntime", "LateRuntime"]

GIB = 1 << 30


class DoneMark:
    """The device is always as far as it can be."""

    def wait(self, timeout_s: float | None = None) -> bool:
        return True


class HostRuntime(CudaRuntime):
    """Every method of `CudaRuntime` on the host; copies are done when they return."""

    communicator_kind = "gloo"

    def __init__(self, total_bytes: int = 8 * GIB, used_before: int = GIB // 2) -> None:
        self.device = torch.device("cpu")
        self.faults = Faults(self.describe_memory, self.release_cached)
        self.name, self.capability, self.num_multiprocessors = "fake GPU", (9, 0), 4
        self.total_bytes, self.used_before = total_bytes, used_before
        #: What the engine is said to have taken, and what its largest step takes.
        self.taken_bytes, self.peak_bytes = 0, 1 << 20
        #: How many allocations may still succeed; None for any number.
        self.allocations_left: int | None = None
        self.graphs: list[RecordedGraph] = []
        #: Graphs run Python again rather than record: the interpreter's kernels are no operations of torch.
        self.reruns_python = False
        self.num_pools = self.num_released = self.num_pinned = self.num_captures = 0
        #: Operations that wait pass until the capture, as those do that torch does not watch.
        self.misses_waits = False

    @contextmanager
    def working(self, doing: str) -> Iterator[None]:
        with self.faults.typed(doing):
            yield

    def pinned(self, num_bytes: int) -> torch.Tensor:
        self.num_pinned += num_bytes > 0
        return torch.empty(num_bytes, dtype=torch.uint8)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if self.allocations_left is not None:
            if self.allocations_left == 0:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
            self.allocations_left -= 1
        tensor = torch.zeros(shape, dtype=dtype)
        self.taken_bytes += tensor.nbytes
        return tensor

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)

    def mark(self) -> DoneMark:
        return DoneMark()

    def synchronize(self) -> None:
        pass

    def memory(self) -> tuple[int, int]:
        return self.total_bytes - self.used_before - self.taken_bytes, self.total_bytes

    def unreserved_bytes(self) -> int:
        return self.used_before

    def describe_memory(self) -> str:
        free, total = self.memory()
        return f"of {total / GIB:.2f} GiB {free / GIB:.2f} are free"

    def measure_peak(self, run: Callable[[], None]) -> int:
        run()
        return self.peak_bytes

    def release_cached(self) -> None:
        self.num_released += 1

    def begin_graphs(self) -> None:
        self.num_pools += 1

    @contextmanager
    def refusing_waits(self) -> Iterator[None]:
        # Over graphs that run Python again, tests interpret kernels, which read their arguments' numbers.
        with nullcontext() if self.misses_waits or self.reruns_python else WaitRefused():
            yield

    def capture(self, run: Callable[[], None]) -> Graph:
        self.num_captures += 1
        if self.reruns_python:
            run()
            return RerunGraph(run)
        graph = RecordedGraph(run)
        self.graphs.append(graph)
        return graph


class RerunGraph:
    """A graph that shows nothing but which one is replayed."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run

    def replay(self) -> None:
        self._run()


class LateRuntime(HostRuntime):
    """Copies are done as late as they may be: when something waits for a mark behind them."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.num_done = 0

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._queue.append((target, source))

    def mark(self) -> LateMark:
        return LateMark(self, self.num_done + len(self._queue))

    def synchronize(self) -> None:
        self.run_until(self.num_done + len(self._queue))

    def run_until(self, place: int) -> None:
        """Do the copies up to ``place``, counted from the first one ever."""
        while self.num_done < place:
            target, source = self._queue.pop(0)
            target.copy_(source)
            self.num_done += 1


class LateMark:
    """A place in the queue of a `LateRuntime`; with a deadline nothing is ever done in time."""

    def __init__(self, runtime: LateRuntime, place: int) -> None:
        self._runtime = runtime
        self._place = place

    def wait(self, timeout_s: float | None = None) -> bool:
        if timeout_s is None:
            self._runtime.run_until(self._place)
        return self._runtime.num_done >= self._place
