"""TpuModelRunner: core's step template over XLA's seams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from core_engine.plugin.runtime import (
    BucketShapes,
    CaptureReport,
    KVCacheConfig,
    LoadReport,
    LoRAAdapter,
    LoRAInfo,
    ProfileReport,
    SchedulerOutput,
    Seams,
    StepHandle,
    StepModelRunner,
)
from core_engine_tpu.attention import TpuAttention
from core_engine_tpu.buckets import request_buckets, token_buckets
from core_engine_tpu.device_io import TpuIO
from core_engine_tpu.programs import TpuPrograms
from core_engine_tpu.sampler import SortFreeSampler
from core_engine_tpu.weights import RequireTensorParallelPlan

__all__ = ["TpuModelRunner"]


class TpuModelRunner(StepModelRunner):
    """Runs every model that core loads, with padded shapes and compiled graphs."""

    def build_seams(self) -> Seams:
        """Return XLA's parts; the sampler keeps static shapes."""
        options: Mapping[str, Any] = self.context.worker.options
        programs = TpuPrograms(self.device, fail_on_compilation=options["recompilation"] == "error")
        self._io = TpuIO(self.device)
        return Seams(
            shapes=BucketShapes(
                max_num_batched_tokens=self.config.max_num_batched_tokens,
                max_num_seqs=self.config.max_num_seqs,
                max_logprobs=self.capabilities.max_logprobs,
                token_buckets=token_buckets(options["token_buckets"]),
                request_buckets=request_buckets(options["request_buckets"]),
            ),
            io=self._io,
            attention=TpuAttention(
                self.device,
                options["attention"],
                max_num_seqs=self.config.max_num_seqs,
                max_model_len=self.config.max_model_len or self.context.model.max_position_embeddings or 1,
            ),
            programs=programs,
            sampler=SortFreeSampler(),
            layer_transforms=(RequireTensorParallelPlan(),) if self.device.num_devices > 1 else (),
            experts="batched_mm",
        )

    def load_model(self) -> LoadReport:
        """Load the model; the bytes reported are those on each device, which all hold every adapter whole."""
        with self.device.exclusive():
            report = super().load_model()
        weights = self._io.weights
        if weights is None:
            return report
        num_bytes = report.weight_bytes - weights.saved_bytes
        return replace(report, weight_bytes=num_bytes, divided_share=weights.divided_share)

    def profile_run(self) -> ProfileReport:
        """Measure the largest step; like every call that computes, while no other engine does."""
        with self.device.exclusive():
            return super().profile_run()

    def initialize_kv_cache(self, kv_cache_config: KVCacheConfig) -> int:
        """Allocate and bind the caches."""
        with self.device.exclusive():
            return super().initialize_kv_cache(kv_cache_config)

    def dummy_run(self, num_tokens: int, num_reqs: int) -> int:
        """Run one padded step of invented tokens."""
        with self.device.exclusive():
            return super().dummy_run(num_tokens, num_reqs)

    def capture_model(self) -> CaptureReport:
        """Compile every graph."""
        with self.device.exclusive():
            return super().capture_model()

    def execute_model(self, scheduler_output: SchedulerOutput) -> StepHandle:
        """Compute one step, whose results are on the host when this returns."""
        with self.device.exclusive():
            return super().execute_model(scheduler_output)

    def add_lora(self, adapter: LoRAAdapter) -> LoRAInfo:
        """Take an adapter."""
        with self.device.exclusive():
            return super().add_lora(adapter)
