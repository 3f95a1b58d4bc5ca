"""Traces an engine's graphs without a TPU and without weights, and compiles them for one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tqdm import tqdm

from core_engine.plugin import CompiledGraph
from core_engine.plugin.runtime import DeviceReport, RunnerContext
from core_engine_tpu.chips import Target
from core_engine_tpu.compiler_process import CompilerProcess
from core_engine_tpu.runtime_tracing import TracingRuntime
from core_engine_tpu.tracing import TracingModelRunner
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
    """Run a worker's start over placeholders, and compile what it records; see `BackendSpec.compile_check`.

    A bar on stderr names the graph under way.
    """
    worker = TracingWorker(context, target)
    capabilities = worker.init_device().capabilities
    runner = TracingModelRunner(
        RunnerContext(worker=context, capabilities=capabilities, device=worker.device)
    )
    worker.attach_model_runner(runner)
    worker.load_model()
    with CompilerProcess(target, len(context.devices)) as compiler:
        compilation = _Compilation(compiler, runner)
        runner.io.peak = compilation.peak
        worker.initialize_cache(size_pool(worker.get_kv_cache_spec(), worker.determine_available_memory()))
        runner.capture_model()
        return compilation.finish(f"compiling for {target.text}")


class _Compilation:
    """Compiles the graphs that a runner records, in their order."""

    def __init__(self, compiler: CompilerProcess, runner: TracingModelRunner) -> None:
        self._compiler = compiler
        self._recorded = runner.programs.graphs
        self._compiled: list[CompiledGraph] = []

    def peak(self) -> int:
        """Compile what is recorded so far, and return the most that one of the graphs needs at work."""
        return max(graph.working_bytes for graph in self.finish("compiling the profile run"))

    def finish(self, title: str) -> tuple[CompiledGraph, ...]:
        """Compile what is recorded and not compiled yet, and return all."""
        waiting = self._recorded[len(self._compiled) :]
        bar = tqdm(waiting, desc=title, unit="graph", leave=False, file=sys.stderr)
        for traced in bar:
            bar.set_postfix_str(f"{traced.name}, {traced.step}")
            told = self._compiler.compile(traced.graph)
            self._compiled.append(CompiledGraph(name=traced.name, step=traced.step, **told))
        return tuple(self._compiled)
