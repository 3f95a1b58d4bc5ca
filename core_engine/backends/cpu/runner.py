"""CpuModelRunner: the parts of `StepModelRunner` for the CPU."""

from __future__ import annotations

from core_engine.backends.cpu.device_io import CpuIO
from core_engine.plugin.runtime import (
    EagerPrograms,
    ExactShapes,
    ReferencePagedAttention,
    ReferenceSampler,
    Seams,
    StepModelRunner,
)

__all__ = ["CpuModelRunner"]


class CpuModelRunner(StepModelRunner):
    """Takes any shape and compiles nothing."""

    def build_seams(self) -> Seams:
        """Return the CPU's parts."""
        return Seams(
            shapes=ExactShapes(),
            io=CpuIO(),
            attention=ReferencePagedAttention(),
            programs=EagerPrograms(),
            sampler=ReferenceSampler(),
        )
