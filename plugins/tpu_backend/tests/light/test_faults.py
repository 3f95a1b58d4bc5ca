from __future__ import annotations

import pytest
from core_engine_tpu.faults import typed_fault, typed_faults

from core_engine.plugin import DeviceLost, OutOfDeviceMemory

OUT_OF_MEMORY = [
    "Out of memory allocating 70368744177664 bytes.",
    "RESOURCE_EXHAUSTED: Attempting to allocate 12.21G. That was not possible. There are 9.34G free.",
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 20.50G "
    "of 15.75G hbm. Exceeded hbm capacity by 4.75G.",
]
LOST = [
    "UNAVAILABLE: TPU device is not available",
    "INTERNAL: Core halted unexpectedly: INTERNAL: Accelerator device halted prematurely",
    "DATA_LOSS: chip 2 stopped",
]


@pytest.mark.parametrize("text", OUT_OF_MEMORY)
def test_too_little_memory_is_told_with_what_was_asked(text: str) -> None:
    error = typed_fault(RuntimeError(text), "a tensor [4, 16]")
    assert isinstance(error, OutOfDeviceMemory)
    assert str(error).startswith(f"the device has too little memory for a tensor [4, 16]: {text}")


@pytest.mark.parametrize("text", LOST)
def test_a_device_that_is_gone_is_told(text: str) -> None:
    error = typed_fault(RuntimeError(text), "the download of results")
    assert isinstance(error, DeviceLost)
    assert str(error).startswith(f"the device stopped answering during the download of results: {text}")


def test_other_errors_stay_what_they_are() -> None:
    assert typed_fault(RuntimeError("INVALID_ARGUMENT: shapes differ"), "a graph") is None
    assert typed_fault(RuntimeError("shape [3] is unavailable here; the user aborted"), "a graph") is None
    scratch = "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem while allocating on stack"
    assert typed_fault(RuntimeError(scratch), "a graph") is None
    cause = RuntimeError("INVALID_ARGUMENT: shapes differ")
    with pytest.raises(RuntimeError, match=r"^INVALID_ARGUMENT: shapes differ$"), typed_faults("a graph"):
        raise cause


def test_the_cause_is_kept() -> None:
    cause = RuntimeError(OUT_OF_MEMORY[0])
    with pytest.raises(OutOfDeviceMemory) as raised, typed_faults("a tensor"):
        raise cause
    assert raised.value.__cause__ is cause


def test_long_texts_are_cut() -> None:
    assert len(str(typed_fault(RuntimeError("RESOURCE_EXHAUSTED: " + "x " * 5000), "a graph"))) < 1000
