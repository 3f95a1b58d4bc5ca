"""CudaModelRunner: core's step template over CUDA's seams."""

from __future__ import annotations

from dataclasses import replace

from core_engine.plugin.runtime import (
    AttentionBackend,
    CaptureReport,
    EagerPrograms,
    ExactShapes,
    KVCacheConfig,
    LoadReport,
    ProfileReport,
    ReferencePagedAttention,
    ReferenceSampler,
    Sampler,
    SchedulerOutput,
    Seams,
    ShapePolicy,
    StepHandle,
    StepModelRunner,
)
from core_engine_cuda.attention import TritonPagedAttention
from core_engine_cuda.device_io import CudaIO
from core_engine_cuda.graph_sizes import captured_sizes
from core_engine_cuda.graphs import GraphPrograms
from core_engine_cuda.runtime import CudaRuntime
from core_engine_cuda.sampler import TritonSampler
from core_engine_cuda.shapes import CapturedShapes

__all__ = ["CudaModelRunner"]

#: Tokens of the small mixed step that warm-up runs, besides the largest.
_SMALL_STEP = 32


class CudaModelRunner(StepModelRunner):
    """Runs every model that core loads; decode steps are replayed as graphs unless ``enforce_eager``."""

    device: CudaRuntime

    def build_seams(self) -> Seams:
        """Return CUDA's parts."""
        self._graphs = None if self.config.enforce_eager else GraphPrograms(self.device)
        return Seams(
            shapes=self._make_shapes(),
            io=CudaIO(self.device),
            attention=self._make_attention(),
            programs=EagerPrograms() if self._graphs is None else self._graphs,
            sampler=self._make_sampler(),
            communicator=self.context.communicator,
        )

    def load_model(self) -> LoadReport:
        """Load the model. Raises `OutOfDeviceMemory` where its weights do not fit."""
        with self.device.working("the model's weights"):
            return super().load_model()

    def profile_run(self) -> ProfileReport:
        """Measure the largest step; what attention takes once the cache stands counts with it."""
        with self.device.working("the largest step"):
            report = super().profile_run()
        attention = self.seams.attention
        scratch = attention.scratch_bytes if isinstance(attention, TritonPagedAttention) else 0
        return replace(report, activation_bytes=report.activation_bytes + scratch)

    def initialize_kv_cache(self, kv_cache_config: KVCacheConfig) -> int:
        """Allocate and bind the caches; graphs that read others are forgotten."""
        if self._graphs is not None:
            self._graphs.drop()
        with self.device.working("the KV cache"):
            return super().initialize_kv_cache(kv_cache_config)

    def dummy_run(self, num_tokens: int, num_reqs: int) -> int:
        """Run one padded step of invented tokens."""
        with self.device.working("a step of warm-up"):
            return super().dummy_run(num_tokens, num_reqs)

    def capture_model(self) -> CaptureReport:
        """Compile the kernels of mixed steps by running two, then capture decode steps."""
        for num_tokens in {self.config.max_num_batched_tokens, _SMALL_STEP}:
            if 1 < num_tokens <= self.config.max_num_batched_tokens:
                self.dummy_run(num_tokens, 1)
        if self._graphs is not None:
            self._graphs.begin()
        with self.device.working("CUDA graphs (graph_sizes says how many, enforce_eager takes none)"):
            return super().capture_model()

    def execute_model(self, scheduler_output: SchedulerOutput) -> StepHandle:
        """Start one step."""
        with self.device.working("a step"):
            return super().execute_model(scheduler_output)

    def _make_attention(self) -> AttentionBackend:
        if self.context.worker.options["attention"] == "triton":
            return TritonPagedAttention(
                num_sms=self.device.num_multiprocessors, major=self.device.capability[0]
            )
        # Contexts trimmed to their lengths would have other shapes in every step.
        return ReferencePagedAttention(trim_context=False)

    def _make_sampler(self) -> Sampler:
        return TritonSampler() if self.context.worker.options["sampler"] == "triton" else ReferenceSampler()

    def _make_shapes(self) -> ShapePolicy:
        if self.config.enforce_eager:
            return ExactShapes()
        listed = self.context.worker.options["graph_sizes"]
        sizes = captured_sizes(None if listed is None else str(listed), self.config.max_num_seqs)
        return CapturedShapes(sizes, self.capabilities.max_logprobs)
