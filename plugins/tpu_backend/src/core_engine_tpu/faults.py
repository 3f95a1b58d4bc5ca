"""Typed errors for what the XLA runtime reports as text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from core_engine.plugin import DeviceLost, EngineError, OutOfDeviceMemory

__all__ = ["typed_fault", "typed_faults"]

#: Of an allocation, and of the compiler when a program's buffers do not fit.
_OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|[Oo]ut of memory")
#: Memory inside the chip's cores, which one kernel fills; no setting of the engine's changes it.
_CORE_MEMORY = re.compile(r"memory space [vs]mem", re.IGNORECASE)
#: Status codes, which stand in capitals, and sentences of a runtime that has lost its chip.
_LOST = re.compile(
    r"\b(UNAVAILABLE|DATA_LOSS|ABORTED)\b"
    r"|(?i:\bhalted\b|device (was|is) lost|failed to (get|open) .*tpu|hardware (fault|error))"
)
_MAX_TEXT = 400


def typed_fault(error: BaseException, doing: str) -> EngineError | None:
    """Return the typed error for what the runtime raised while ``doing``, or None for anything else."""
    text = " ".join(str(error).split())[:_MAX_TEXT]
    if _OUT_OF_MEMORY.search(text) and not _CORE_MEMORY.search(text):
        return OutOfDeviceMemory(
            f"the device has too little memory for {doing}: {text}. Lower kv_cache_bytes, "
            "device_memory_utilization, max_num_batched_tokens or max_num_seqs, or divide the model over "
            "more devices (tensor_parallel_size)"
        )
    if _LOST.search(text):
        return DeviceLost(f"the device stopped answering during {doing}: {text}. Start the engine anew")
    return None


@contextmanager
def typed_faults(doing: str) -> Iterator[None]:
    """Raise `OutOfDeviceMemory` or `DeviceLost` where the runtime's error within the block says so."""
    try:
        yield
    except RuntimeError as error:
        typed = typed_fault(error, doing)
        if typed is None:
            raise
        raise typed from error
