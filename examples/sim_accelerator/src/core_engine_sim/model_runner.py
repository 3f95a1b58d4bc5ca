"""SimModelRunner: core's step template over the simulated device's seams."""

from __future__ import annotations

from core_engine.plugin.runtime import (
    BucketShapes,
    ReferenceSampler,
    Seams,
    StepModelRunner,
)
from core_engine_sim.attention import make_attention
from core_engine_sim.device_io import SimIO
from core_engine_sim.programs import SimPrograms

__all__ = ["SimModelRunner"]


class SimModelRunner(StepModelRunner):
    """Runs every model that core loads, with padded shapes and compiled programs."""

    def build_seams(self) -> Seams:
        """Return the device's parts; the sampler is core's reference, which has static shapes."""
        options = self.context.worker.options
        programs = SimPrograms(self.device, strict_shapes=bool(options["strict_shapes"]))
        kernel, mixes = str(options["attention"]), self.capabilities.mixed_batches
        return Seams(
            shapes=BucketShapes(
                max_num_batched_tokens=self.config.max_num_batched_tokens,
                max_num_seqs=self.config.max_num_seqs,
                max_logprobs=self.capabilities.max_logprobs,
            ),
            io=SimIO(self.device),
            attention=make_attention(self.device, kernel, mixes=mixes),
            programs=programs,
            sampler=ReferenceSampler(),
            experts="batched_mm",
            # Declared although the dense kernel cannot: what the scheduler mixes is taken apart again.
            splits_mixed_steps=kernel == "dense" and mixes,
        )
