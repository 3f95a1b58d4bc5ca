"""GraphPrograms: which calls are captured as graphs, and which graph is replayed when."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

import torch

from core_engine.plugin.runtime import ProgramBuilder
from core_engine_cuda.faults import is_capture_refusal
from core_engine_cuda.graph_call import call_key, map_tensors, tensors_of
from core_engine_cuda.runtime import CudaRuntime, Graph

__all__ = ["GraphPrograms"]

logger = logging.getLogger("core_engine.backends.cuda")

F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class _Captured:
    """A graph, what it reads (kept, so that its memory stays its own) and what it writes."""

    graph: Graph
    inputs: list[torch.Tensor]
    result: object


class GraphPrograms(ProgramBuilder):
    """Runs functions as they are, but for calls that were captured between ``begin`` and ``seal``.

    A graph reads and writes the memory that it was captured with. It is replayed for a call whose
    tensors lie exactly there; every other call runs the function, and nothing is copied to make it fit:
    the inputs of another step may lie where a copy would go. Results are written to memory of their own,
    which the graphs of one function share; they hold until the next call of that function.
    """

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._graphs: dict[tuple[str, Hashable], _Captured] = {}
        self._results: dict[Hashable, torch.Tensor] = {}
        self._is_capturing = False
        #: Why nothing is captured; empty while it is.
        self.refusal = ""

    def compile(self, name: str, fn: F) -> F:
        """Return ``fn``, to be captured and replayed."""

        @wraps(fn)
        def program(*args: Any) -> object:
            if not self._graphs and not self._is_capturing:
                return fn(*args)
            key = name, call_key(args)
            captured = self._graphs.get(key)
            if captured is not None:
                captured.graph.replay()
                return captured.result
            if not self._is_capturing:
                return fn(*args)
            return self._capture(key, fn, args)

        return cast(F, program)

    def begin(self) -> None:
        """Capture every call from now on that has no graph yet."""
        self._runtime.begin_graphs()
        self._is_capturing = True

    def seal(self) -> None:
        """Capture nothing more."""
        self._is_capturing = False

    def drop(self) -> None:
        """Forget all graphs and their memory: what they were captured with is not used any more."""
        self._graphs.clear()
        self._results.clear()

    def num_programs(self) -> int:
        """Count the graphs."""
        return len(self._graphs)

    def _capture(self, key: tuple[str, Hashable], fn: Callable[..., object], args: tuple[Any, ...]) -> object:
        """Call ``fn`` as it is, which compiles its kernels and shapes its results, then capture it.

        In between it runs once more to see whether it waits for the GPU: a refusal before the capture leaves
        nothing to clean up.
        """
        name = key[0]
        result = fn(*args)
        places = iter([self._place(name, index, tensor) for index, tensor in enumerate(tensors_of(result))])
        kept = map_tensors(result, lambda _: next(places))

        def run() -> None:
            for place, tensor in zip(tensors_of(kept), tensors_of(fn(*args)), strict=True):
                place.copy_(tensor)

        try:
            with self._runtime.refusing_waits():
                fn(*args)
            graph = self._runtime.capture(run)
        except RuntimeError as error:
            if not is_capture_refusal(error):
                raise
            self._give_up(name, error)
            return result
        self._graphs[key] = _Captured(graph, tensors_of(args), kept)
        graph.replay()
        return kept

    def _place(self, name: str, index: int, tensor: torch.Tensor) -> torch.Tensor:
        """Return memory for one result: the first rows of what the largest such result has."""
        key = name, index, tensor.dtype, tensor.shape[1:]
        num_rows = tensor.shape[0]
        if key not in self._results or self._results[key].shape[0] < num_rows:
            self._results[key] = self._runtime.zeros(tuple(tensor.shape), tensor.dtype)
        return self._results[key][:num_rows]

    def _give_up(self, name: str, error: RuntimeError) -> None:
        """Run everything as it is from now on. Raises what the device says, should it have failed."""
        self._runtime.synchronize()
        self.refusal = f"{name!r} cannot be captured: {str(error).splitlines()[0]}"
        logger.warning("no CUDA graphs, so that decode steps are slower: %s", self.refusal)
        self._is_capturing = False
        self.drop()
