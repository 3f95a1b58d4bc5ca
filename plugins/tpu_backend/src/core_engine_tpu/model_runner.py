"""TpuModelRunner: core's step template over XLA's seams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core_engine.plugin.runtime import BucketShapes, ReferenceSampler, Seams, StepModelRunner
from core_engine_tpu.attention import DenseXlaAttention
from core_engine_tpu.buckets import request_buckets, token_buckets
from core_engine_tpu.device_io import TpuIO
from core_engine_tpu.programs import TpuPrograms

__all__ = ["TpuModelRunner"]


class TpuModelRunner(StepModelRunner):
    """Runs every model that core loads, with padded shapes and compiled graphs."""

    def build_seams(self) -> Seams:
        """Return XLA's parts; the sampler is core's reference, which has static shapes."""
        options: Mapping[str, Any] = self.context.worker.options
        programs = TpuPrograms(self.device, fail_on_compilation=options["recompilation"] == "error")
        return Seams(
            shapes=BucketShapes(
                max_num_batched_tokens=self.config.max_num_batched_tokens,
                max_num_seqs=self.config.max_num_seqs,
                max_logprobs=self.capabilities.max_logprobs,
                token_buckets=token_buckets(options["token_buckets"]),
                request_buckets=request_buckets(options["request_buckets"]),
            ),
            io=TpuIO(self.device),
            attention=DenseXlaAttention(self.device),
            programs=programs,
            sampler=ReferenceSampler(),
            experts="batched_mm",
        )
