"""The engine's own graphs, recorded without weights and without a TPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch.utils import _pytree as pytree

from core_engine.plugin.runtime import (
    DeviceStep,
    HostStep,
    ProgramBuilder,
    ReadyDownload,
    Seams,
)
from core_engine_tpu.device_io import TpuIO
from core_engine_tpu.model_runner import TpuModelRunner
from core_engine_tpu.runtime_tracing import LoweredGraph, TracingRuntime

__all__ = ["TracedGraph", "TracingModelRunner"]

F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedGraph:
    """A graph of the engine's: the function, what step it serves, and the graph itself."""

    name: str
    step: str
    graph: LoweredGraph


class TracingIO(TpuIO):
    """The TPU's transfers over a runtime that holds placeholders."""

    def __init__(self, runtime: TracingRuntime) -> None:
        super().__init__(runtime)
        #: The step that was uploaded last, and whether it is the profile run's.
        self.step: HostStep | None = None
        self.is_profile_run = False
        #: Tells what the graphs recorded so far need of a device besides their arguments; 0 for unknown.
        self.peak: Callable[[], int] = lambda: 0

    @property
    def weight_device(self) -> str:
        """Have no weights read."""
        return "meta"

    def upload(self, step: HostStep) -> DeviceStep:
        """Note the step that the functions called next serve."""
        self.step = step
        return super().upload(step)

    def download(self, tensors: Mapping[str, torch.Tensor]) -> ReadyDownload:
        """Download nothing: there are no results."""
        return ReadyDownload({})

    def measure_peak(self, run: Callable[[], None]) -> int:
        """Record the profile run, and return what its graphs need."""
        self.is_profile_run = True
        run()
        self.is_profile_run = False
        return self.peak()


class TracingPrograms(ProgramBuilder):
    """Records each function once for each shape of its arguments."""

    def __init__(self, runtime: TracingRuntime, io: TracingIO) -> None:
        self._runtime = runtime
        self._io = io
        self._results: dict[object, object] = {}
        self.graphs: list[TracedGraph] = []

    def compile(self, name: str, fn: F) -> F:
        """Return a function that records ``fn`` and answers with placeholders."""

        @wraps(fn)
        def program(*args: Any) -> object:
            key = (name, _signature(args))
            if key not in self._results:
                self._results[key] = self._trace(name, fn, args)
            return self._results[key]

        return cast(F, program)

    def without_gradients(self) -> AbstractContextManager[object]:
        """Return `torch.no_grad`, as for the graphs that run."""
        return torch.no_grad()

    def num_programs(self) -> int:
        """Count the recorded graphs."""
        return len(self.graphs)

    def _trace(self, name: str, fn: Callable[..., object], args: tuple[Any, ...]) -> object:
        tensors, structure = pytree.tree_flatten(fn(*args))
        graph = self._runtime.lower(tensors)
        self.graphs.append(TracedGraph(name=name, step=self._describe(name), graph=graph))
        like = [self._runtime.placeholder(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
        return pytree.tree_unflatten(like, structure)

    def _describe(self, name: str) -> str:
        step = self._io.step
        assert step is not None  # no function is called before its step was uploaded
        num_tokens, num_reqs, kind = step.shape.num_tokens, step.shape.num_reqs, step.sampling.kind
        rows = _count(num_reqs, "row")
        if name == "backbone":
            profile_run = ", no cache" if self._io.is_profile_run else ""
            return f"{_count(num_tokens, 'token')}, {_count(num_reqs, 'request')}{profile_run}"
        if name == "logits":
            return f"{rows} of {num_tokens}"
        if name != "sample":
            return rows
        if kind.penalties:
            return f"{rows}, everything"
        return f"{rows}, {'greedy' if kind.all_greedy else 'random'}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _signature(args: tuple[Any, ...]) -> object:
    """Return what tells the graphs of one function apart."""
    leaves, structure = pytree.tree_flatten(args)
    return structure, tuple(
        (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
    )


class TracingModelRunner(TpuModelRunner):
    """The runner of a TPU over placeholders; whatever would run is recorded instead."""

    #: The seams that record.
    io: TracingIO
    programs: TracingPrograms

    def build_seams(self) -> Seams:
        """Return the TPU's parts, with transfers and programs that only record."""
        seams = super().build_seams()
        self._io = self.io = TracingIO(self.device)
        self.programs = TracingPrograms(self.device, self.io)
        return replace(seams, io=self.io, programs=self.programs)
