"""Traces an engine's graphs without a TPU and without weights, and compiles them for one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tqdm import tqdm

from core_engine.plugin import CompiledGraph
from core_engine.plugin.runtime import DeviceReport, RunnerContext
from core_engine_tpu.chips import Target
from core_engine_tpu.compiler_process import CompilerProcess
from core_engine_tpu.runtime_tracing import TracingRuntime
from core_engine_tpu.tracing import TracedGraph, TracingModelRunner
from core_engine_tpu.worker import TpuWorker

if TYPE_CHECKING:
    from core_engine.plugin import SizePool
    from core_engine.plugin.runtime import WorkerContext

__all__ = ["compile_engine"]


class TracingWorker(TpuWorker):
    """Divides the memory of a TPU that is not there."""

    device: TracingRuntime

    def __init__(self, context: WorkerContext, target: Target) -> None:
        super().__init__(context)
        self._target = target

    def init_device(self) -> DeviceReport:
        """Take placeholders for a device."""
        memory_bytes = self._target.chip.usable_mib << 20
        self.device = TracingRuntime(self.config.tensor_parallel_size, memory_bytes)
        capabilities = self.context.capabilities
        return DeviceReport(device=self._target.text, capabilities=capabilities, memory=self._memory())


def compile_engine(context: WorkerContext, target: Target, size_pool: SizePool) -> tuple[CompiledGraph, ...]:
    """Do what `BackendSpec.compile_check` says; a bar on stderr names the graph under way."""
    graphs = _trace(context, target, size_pool)
    with CompilerProcess(target, len(context.devices)) as compiler:
        bar = tqdm(graphs, desc=f"compiling for {target.text}", unit="graph", leave=False, file=sys.stderr)
        return tuple(_compile(bar, compiler))


def _trace(context: WorkerContext, target: Target, size_pool: SizePool) -> tuple[TracedGraph, ...]:
    """Run a worker's start over placeholders."""
    worker = TracingWorker(context, target)
    capabilities = worker.init_device().capabilities
    runner = TracingModelRunner(
        RunnerContext(worker=context, capabilities=capabilities, device=worker.device)
    )
    worker.attach_model_runner(runner)
    worker.load_model()
    worker.initialize_cache(size_pool(worker.get_kv_cache_spec(), worker.determine_available_memory()))
    runner.capture_model()
    return tuple(runner.tracing.graphs)


def _compile(bar: tqdm[TracedGraph], compiler: CompilerProcess) -> Iterator[CompiledGraph]:
    for traced in bar:
        bar.set_postfix_str(f"{traced.name}, {traced.step}")
        yield CompiledGraph(name=traced.name, step=traced.step, **compiler.compile(traced.graph))
