"""TpuModelRunner: core's step template over XLA's seams."""

from __future__ import annotations

from core_engine.plugin.runtime import BucketShapes, CaptureReport, ReferenceSampler, Seams, StepModelRunner
from core_engine_tpu.attention import DenseXlaAttention
from core_engine_tpu.device_io import TpuIO
from core_engine_tpu.programs import TpuPrograms

__all__ = ["TpuModelRunner"]


class TpuModelRunner(StepModelRunner):
    """Runs every model that core loads, with padded shapes and compiled graphs."""

    def build_seams(self) -> Seams:
        """Return XLA's parts; the sampler is core's reference, which has static shapes."""
        options = self.context.worker.options
        self._programs = TpuPrograms(self.device, fail_on_compilation=options["recompilation"] == "error")
        return Seams(
            shapes=BucketShapes(
                max_num_batched_tokens=self.config.max_num_batched_tokens,
                max_num_seqs=self.config.max_num_seqs,
                max_logprobs=self.capabilities.max_logprobs,
            ),
            io=TpuIO(self.device),
            attention=DenseXlaAttention(self.device),
            programs=self._programs,
            sampler=ReferenceSampler(),
            experts="batched_mm",
        )

    def capture_model(self) -> CaptureReport:
        """Compile every shape; from then on a new one is a fault."""
        report = super().capture_model()
        self._programs.seal()
        return report
