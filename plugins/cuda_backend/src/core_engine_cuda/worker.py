"""CudaWorker: owns one GPU for the life of a worker."""

from __future__ import annotations

import logging

from core_engine.plugin import DeviceLost, EngineError, UnsupportedFeature
from core_engine.plugin.runtime import (
    CaptureReport,
    DeviceReport,
    Health,
    MemoryBudget,
    MemoryInfo,
    SchedulerOutput,
    StepHandle,
    TorchCommunicator,
    WorkerBase,
)
from core_engine_cuda.detection import LOWEST_CAPABILITY, UUID
from core_engine_cuda.graph_sizes import captured_sizes
from core_engine_cuda.memory import MemoryUse, graph_reserve, kv_cache_share
from core_engine_cuda.runtime import CudaRuntime
from core_engine_cuda.toolchain import toolchain_refusal

__all__ = ["CudaWorker"]

logger = logging.getLogger("core_engine.backends.cuda")


class CudaWorker(WorkerBase):
    """Opens the GPU and divides its memory; ``self.device`` is the `CudaRuntime`."""

    device: CudaRuntime

    def open_runtime(self) -> CudaRuntime:
        """Open the planned GPU. Raises `EngineError` where its kernels could not be started."""
        options = self.context.options
        if "triton" in (options["attention"], options["sampler"]) and (refusal := toolchain_refusal()):
            raise EngineError(refusal)
        return CudaRuntime(self.context.devices[0].details.get(UUID, ""))

    def init_device(self) -> DeviceReport:
        """Open the GPU, note what is in use on it before this engine takes anything, and meet other ranks.

        Raises `UnsupportedFeature` for a GPU that is too old.
        """
        self.device = self.open_runtime()
        if self.device.capability < LOWEST_CAPABILITY:  # not known where only the driver's files were read
            raise UnsupportedFeature(
                f"{self.device.name} has compute capability {'.'.join(map(str, self.device.capability))}; "
                f"{'.'.join(map(str, LOWEST_CAPABILITY))} or later is needed: choose another GPU "
                "(CUDA_VISIBLE_DEVICES), or --backend cpu"
            )
        free, total = self.device.memory()
        self._used_before = total - free
        self._graph_reserve = 0
        self._meet_ranks()
        return DeviceReport(
            device=f"{self.device.name} ({self.device.device})",
            capabilities=self.context.capabilities,
            memory=MemoryInfo(total_bytes=total, free_bytes=free),
        )

    def determine_available_memory(self) -> MemoryBudget:
        """Try the largest step; what it and all that is in use leave of the share is for the cache.

        Raises `DoesNotFit` with the numbers where that is nothing.
        """
        self.device.release_cached()
        free, total = self.device.memory()
        outside = self.device.unreserved_bytes()
        activations = self.model_runner.profile_run().activation_bytes
        self.device.release_cached()
        kernels = max(0, self.device.unreserved_bytes() - outside)
        self._graph_reserve = self._reserve_for_graphs(activations)
        use = MemoryUse(
            total=total,
            before=self._used_before,
            weights=self.weight_bytes,
            overhead=max(0, total - free - self._used_before - self.weight_bytes) + kernels,
            activations=activations,
            graphs=self._graph_reserve,
        )
        kv_cache_bytes, rule = self.config.kv_cache_bytes, "kv_cache_bytes as configured"
        if kv_cache_bytes is None:
            kv_cache_bytes, rule = kv_cache_share(use, self.config.device_memory_utilization)
        return MemoryBudget(
            total_bytes=total,
            weight_bytes=use.weights,
            activation_bytes=use.activations,
            kv_cache_bytes=kv_cache_bytes,
            rule=rule,
        )

    def compile_or_warm_up_model(self) -> CaptureReport:
        """Capture graphs, and tell when they took more than was kept back for them."""
        self.device.release_cached()
        before, _ = self.device.memory()
        report = super().compile_or_warm_up_model()
        self.device.release_cached()
        after, _ = self.device.memory()
        if report.num_programs:
            taken = max(0, before - after)
            logger.log(
                logging.WARNING if taken > self._graph_reserve else logging.INFO,
                "%d CUDA graphs take %.0f MiB; %.0f MiB were kept back for them",
                report.num_programs,
                taken / 2**20,
                self._graph_reserve / 2**20,
            )
        return report

    def execute_model(self, scheduler_output: SchedulerOutput) -> StepHandle:
        """Start one step; the handle waits for it. Raises `DeviceLost` for every step after a loss."""
        return self.model_runner.execute_model(scheduler_output)

    def check_health(self) -> Health:
        """Wait for the GPU, which tells a fault that it had."""
        try:
            with self.device.working("a check of its health"):
                self.device.synchronize()
        except DeviceLost as lost:
            return Health(healthy=False, detail=str(lost))
        return super().check_health()

    def shutdown(self) -> bool:
        """Drop the runner with its graphs and tensors, and give the memory back to the driver."""
        released = super().shutdown()
        if released and not self.device.faults.lost:
            self.device.release_cached()
        return released

    def _meet_ranks(self) -> None:
        context = self.context
        if context.world_size > 1:
            self.communicator = TorchCommunicator(
                self.device.communicator_kind,
                context.rendezvous,
                context.plan.rank,
                context.world_size,
                device=self.device.device,
            )

    def _reserve_for_graphs(self, activation_bytes: int) -> int:
        if self.config.enforce_eager:
            return 0
        listed = self.context.options["graph_sizes"]
        sizes = captured_sizes(None if listed is None else str(listed), self.config.max_num_seqs)
        return graph_reserve(
            len(sizes),
            self.context.model.num_layers,
            activation_bytes,
            min(1.0, sizes[-1] / self.config.max_num_batched_tokens),
        )
