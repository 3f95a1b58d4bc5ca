"""The seam to torch.cuda does what the fake of the other tests pretends."""

from __future__ import annotations

import pytest
import torch
from core_engine_cuda.detection import CAPABILITY, UUID
from core_engine_cuda.device_io import CudaIO
from core_engine_cuda.graphs import GraphPrograms
from core_engine_cuda.runtime import CudaRuntime

from core_engine.plugin import Detection, OutOfDeviceMemory

MIB = 1 << 20


@pytest.fixture(scope="module")
def runtime(detection: Detection) -> CudaRuntime:
    return CudaRuntime(detection.devices[0].details[UUID])


def test_torch_sees_what_detection_found(detection: Detection, runtime: CudaRuntime) -> None:
    device = detection.devices[0]
    assert runtime.name == device.name
    assert ".".join(map(str, runtime.capability)) == device.details[CAPABILITY]
    _, total = runtime.memory()
    assert device.memory_bytes is not None
    # The driver keeps some of what NVML counts.
    assert 0.9 * device.memory_bytes <= total <= device.memory_bytes


def test_copies_wait_for_nothing_and_arrive(runtime: CudaRuntime) -> None:
    host = runtime.pinned(4 * MIB)
    host.random_(0, 255)
    target, back = runtime.zeros((4 * MIB,), torch.uint8), runtime.pinned(4 * MIB)
    runtime.copy(target, host)
    runtime.copy(back, target)
    assert runtime.mark().wait()
    assert torch.equal(back, host)


def test_a_mark_with_a_deadline_is_not_reached_before_the_work_is_done(runtime: CudaRuntime) -> None:
    matrix = torch.rand(8192, 8192, device=runtime.device)
    for _ in range(40):
        matrix = matrix @ matrix
    mark = runtime.mark()
    assert not mark.wait(1e-6)
    assert mark.wait(60.0)


def test_what_a_call_takes_at_its_most_is_measured(runtime: CudaRuntime) -> None:
    def run() -> None:
        _ = torch.zeros(64 * MIB, dtype=torch.uint8, device=runtime.device) + 1

    assert 128 * MIB <= runtime.measure_peak(run) < 160 * MIB


def test_graphs_are_replayed_over_what_the_inputs_hold(runtime: CudaRuntime) -> None:
    programs = GraphPrograms(runtime)
    calls = []

    def double(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return x * 2

    program = programs.compile("double", double)
    x = torch.ones(8, device=runtime.device)
    with torch.inference_mode():
        programs.begin()
        assert program(x).tolist() == [2.0] * 8
        programs.seal()
        x.fill_(21)
        assert program(x).tolist() == [42.0] * 8
    assert len(calls) == 3
    assert programs.num_programs() == 1


def test_a_call_that_waits_for_the_gpu_turns_graphs_off(runtime: CudaRuntime) -> None:
    programs = GraphPrograms(runtime)
    program = programs.compile("waits", lambda x: x * x.sum().item())
    x = torch.ones(4, device=runtime.device)
    programs.begin()
    assert program(x).tolist() == [4.0] * 4
    programs.seal()
    assert "cannot be captured" in programs.refusal
    assert program(x).tolist() == [4.0] * 4
    runtime.synchronize()
    runtime.release_cached()


def test_too_much_memory_is_refused_with_numbers_and_the_gpu_goes_on(runtime: CudaRuntime) -> None:
    io = CudaIO(runtime)
    _, total = runtime.memory()
    with pytest.raises(OutOfDeviceMemory, match=r"too little memory for a tensor .* GiB .* are free"):
        io.allocate((2 * total,), torch.uint8)
    assert not io.allocate((16,), torch.int32).any()


def test_a_capture_that_fails_leaves_nothing_behind(runtime: CudaRuntime) -> None:
    # The last test: what it looks for would be in the way of all others.
    x = torch.ones(4, device=runtime.device)
    stream = torch.cuda.current_stream()
    runtime.begin_graphs()
    with pytest.raises(RuntimeError, match="captur"):
        runtime.capture(lambda: x.sum().item())
    assert torch.cuda.current_stream() == stream
    runtime.synchronize()
    runtime.release_cached()
    runtime.begin_graphs()
    doubled = torch.zeros(4, device=runtime.device)
    runtime.capture(lambda: doubled.copy_(x * 2)).replay()
    assert doubled.tolist() == [2.0] * 4
