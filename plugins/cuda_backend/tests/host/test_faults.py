"""Typed errors for what torch reports as text."""

from __future__ import annotations

import sys

import pytest
import torch
from core_engine_cuda.faults import Faults, is_capture_refusal

from core_engine.plugin import ConfigError, DeviceLost, EngineError, OutOfDeviceMemory

SENTENCE = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"


class Gpu:
    """What `Faults` asks of a device."""

    def __init__(self) -> None:
        self.num_released = 0
        self.faults = Faults(lambda: "1.00 GiB are free", self.release)

    def release(self) -> None:
        self.num_released += 1


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(SENTENCE),
        RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
    ],
)
def test_too_little_memory_is_typed_and_the_device_stays_usable(gpu: Gpu, error: RuntimeError) -> None:
    with pytest.raises(OutOfDeviceMemory) as caught, gpu.faults.typed("the KV cache"):
        raise error
    text = str(caught.value)
    assert text.startswith("the GPU has too little memory for the KV cache: CUDA")
    assert "(1.00 GiB are free). Lower kv_cache_bytes" in text
    assert gpu.num_released == 1
    assert gpu.faults.lost == ""


def test_memory_that_cannot_be_given_back_hides_no_error() -> None:
    def refuse() -> None:
        raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")

    faults = Faults(lambda: "1.00 GiB are free", refuse)
    with pytest.raises(OutOfDeviceMemory, match="Tried to allocate"), faults.typed("a step"):
        raise torch.OutOfMemoryError(SENTENCE)


def test_a_failed_allocation_lets_go_of_what_its_frames_held(gpu: Gpu) -> None:
    def step() -> None:
        tensor = torch.ones(3)
        held.append(sys.getrefcount(tensor))
        raise torch.OutOfMemoryError(SENTENCE)

    held: list[int] = []
    with pytest.raises(OutOfDeviceMemory) as caught, gpu.faults.typed("a step"):
        step()
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.__traceback__ is None


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronous",
        "CUDA error: device-side assert triggered",
        "CUDA error: unspecified launch failure",
        "Triton Error [CUDA]: an illegal memory access was encountered",
        "NCCL error in: ProcessGroupNCCL.cpp:77, unhandled cuda error",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx",
    ],
)
def test_a_fault_of_the_device_is_a_loss_that_stays(gpu: Gpu, text: str) -> None:
    with (
        pytest.raises(DeviceLost, match=r"failed during a step.*Start the engine anew"),
        gpu.faults.typed("a step"),
    ):
        raise RuntimeError(text)
    assert gpu.num_released == 0
    ran = False
    with pytest.raises(DeviceLost, match="failed during a step"), gpu.faults.typed("another step"):
        ran = True
    assert not ran


def test_a_refused_capture_is_no_loss(gpu: Gpu) -> None:
    with pytest.raises(RuntimeError, match="captur"), gpu.faults.typed("graphs"):
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
    assert gpu.faults.lost == ""
    assert is_capture_refusal(RuntimeError("called a synchronizing CUDA operation"))


def test_a_capture_that_ended_for_lack_of_memory_is_no_refusal(gpu: Gpu) -> None:
    error = RuntimeError("CUDA error: operation failed due to a previous error during capture")
    assert is_capture_refusal(error)
    error.__context__ = torch.OutOfMemoryError(SENTENCE)
    assert not is_capture_refusal(error)
    with pytest.raises(OutOfDeviceMemory), gpu.faults.typed("graphs"):
        raise error


def test_a_torch_without_code_for_the_gpu_is_told(gpu: Gpu) -> None:
    text = "CUDA error: no kernel image is available for execution on the device"
    with (
        pytest.raises(EngineError, match="holds no code for this GPU"),
        gpu.faults.typed("its first operation"),
    ):
        raise RuntimeError(text)
    assert gpu.faults.lost == ""


def test_causes_are_looked_at(gpu: Gpu) -> None:
    error = ConfigError("cannot load the weights")
    error.__cause__ = torch.OutOfMemoryError(SENTENCE)
    with pytest.raises(OutOfDeviceMemory), gpu.faults.typed("the model's weights"):
        raise error


def test_what_is_typed_already_passes_as_it_is(gpu: Gpu) -> None:
    first = OutOfDeviceMemory("the first")
    with pytest.raises(OutOfDeviceMemory) as caught, gpu.faults.typed("outer"), gpu.faults.typed("inner"):
        raise first
    assert caught.value is first


@pytest.mark.parametrize("error", [ValueError("CUDA error"), RuntimeError("shapes differ"), EngineError("x")])
def test_other_errors_pass(gpu: Gpu, error: Exception) -> None:
    with pytest.raises(type(error)) as caught, gpu.faults.typed("a step"):
        raise error
    assert caught.value is error
