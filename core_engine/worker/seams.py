"""The parts that a backend hands to `StepModelRunner`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core_engine.attention.base import AttentionBackend
    from core_engine.models.layer_transforms import LayerTransform
    from core_engine.parallel.communicator import Communicator
    from core_engine.sampling.base import Sampler
    from core_engine.worker.device_io import DeviceIO
    from core_engine.worker.program_builder import ProgramBuilder
    from core_engine.worker.shape_policy import ShapePolicy

__all__ = ["Seams"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Seams:
    """Everything that differs between devices; the rest of a step is common."""

    shapes: ShapePolicy
    io: DeviceIO
    attention: AttentionBackend
    programs: ProgramBuilder
    sampler: Sampler
    layer_transforms: tuple[LayerTransform, ...] = ()
    #: How the experts of mixture models are computed, by transformers' name; "batched_mm" has static shapes,
    #: None takes what is fastest where shapes are free.
    experts: str | None = None
    #: Compute a step that holds both prefills and decodes as two, for a device that cannot mix them. With
    #: it a backend may declare ``mixed_batches`` all the same.
    splits_mixed_steps: bool = False
    #: Joins this rank with the others; None where one worker runs the whole model.
    communicator: Communicator | None = None
