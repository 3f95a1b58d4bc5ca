"""CpuModelRunner: the parts of `StepModelRunner` for the CPU."""

from __future__ import annotations

import logging
from importlib.util import find_spec

from core_engine.backends.cpu.device_io import CpuIO
from core_engine.backends.cpu.sampler import make_sampler
from core_engine.plugin import ConfigError
from core_engine.plugin.runtime import (
    AttentionBackend,
    EagerPrograms,
    EmulatedChunkedPrefill,
    ExactShapes,
    ReferencePagedAttention,
    Seams,
    StepModelRunner,
    TorchDenseKernel,
)

__all__ = ["CpuModelRunner", "make_attention"]

logger = logging.getLogger(__name__)


class CpuModelRunner(StepModelRunner):
    """Takes any shape and compiles no programs; attention and sampling are compiled kernels."""

    def build_seams(self) -> Seams:
        """Return the CPU's parts."""
        return Seams(
            shapes=ExactShapes(),
            io=CpuIO(),
            attention=make_attention(str(self.context.worker.options["attention"])),
            programs=EagerPrograms(),
            sampler=make_sampler(),
            communicator=self.context.communicator,
        )


def make_attention(choice: str) -> AttentionBackend:
    """Return the attention that the option ``attention`` names; "auto" needs no numba.

    Raises `ConfigError` for "numba" where numba is not installed.
    """
    if choice == "dense":
        return EmulatedChunkedPrefill(TorchDenseKernel(), trim_context=True)
    if choice != "reference" and find_spec("numba"):
        from core_engine.backends.cpu.attention import NumbaPagedAttention

        return NumbaPagedAttention()
    if choice == "numba":
        raise ConfigError(
            "backend option attention is 'numba', which is not installed: pip install 'core-engine[cpu]', "
            "or leave the option out"
        )
    if choice == "auto":
        logger.info("numba is not installed, attention runs in plain torch: pip install 'core-engine[cpu]'")
    return ReferencePagedAttention(trim_context=True)
