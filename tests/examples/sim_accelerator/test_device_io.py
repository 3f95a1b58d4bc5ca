"""The only way between host and device: exact copies, exact accounts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from core_engine_sim.device import SimDevice
from core_engine_sim.device_io import SimIO
from core_engine_sim.errors import WrongDeviceError
from core_engine_sim.tensor import SimTensor

from core_engine.plugin import OutOfDeviceMemory


@pytest.fixture
def io(device: SimDevice) -> SimIO:
    return SimIO(device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64, torch.bool])
def test_a_round_trip_is_bit_exact(io: SimIO, device: SimDevice, dtype: torch.dtype) -> None:
    source = torch.randn(5, 7).to(dtype)
    arrays = io.download({"x": device.copy_from_host(source)}).arrays()
    np.testing.assert_array_equal(arrays["x"], source.numpy())


def test_a_download_is_the_hosts_own_copy(io: SimIO, device: SimDevice) -> None:
    tensor = device.zeros((2,), torch.float32)
    array: Any = io.download({"x": tensor}).arrays()["x"]
    array[:] = 1
    assert tensor.contents.tolist() == [0, 0]


def test_allocated_memory_is_zero(io: SimIO) -> None:
    tensor = io.allocate((3, 5), torch.bfloat16)
    assert isinstance(tensor, SimTensor)
    assert not tensor.contents.any()


def test_memory_info_is_exact(io: SimIO) -> None:
    before = io.memory_info()
    tensor = io.allocate((256,), torch.float32)
    after = io.memory_info()
    assert before.total_bytes == after.total_bytes == 1 << 20
    assert (before.free_bytes, after.free_bytes) == (1 << 20, (1 << 20) - 1024)
    del tensor


def test_the_peak_counts_beyond_what_was_held_and_not_what_came_before(io: SimIO) -> None:
    earlier = io.allocate((1000,), torch.float32)
    del earlier
    held = io.allocate((100,), torch.float32)

    def use() -> None:
        first = io.allocate((10,), torch.float32)
        del first
        io.allocate((20,), torch.float32)

    assert io.measure_peak(use) == 80
    del held


def test_out_of_memory_leaves_the_device_usable(io: SimIO) -> None:
    with pytest.raises(OutOfDeviceMemory):
        io.allocate((1 << 20,), torch.float32)
    assert io.allocate((1 << 18,), torch.float32).shape == (1 << 18,)


def test_two_devices_are_isolated() -> None:
    first, second = (SimIO(SimDevice(index=i, memory_bytes=1000)) for i in range(2))
    tensor = first.allocate((200,), torch.float32)
    assert second.memory_info().free_bytes == 1000
    with pytest.raises(WrongDeviceError, match="sim:1 cannot download"):
        second.download({"x": tensor})


def test_a_placed_model_lies_in_device_memory_and_tied_weights_stay_tied(
    io: SimIO, device: SimDevice
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    model.register_buffer("scale", torch.ones(3))
    assert io.place_model(model) is model
    assert isinstance(model[0].weight, SimTensor)
    assert model[1].weight is model[0].weight
    assert device.memory.used_bytes == 64 + 12


def test_creating_and_destroying_models_leaks_nothing(io: SimIO, device: SimDevice) -> None:
    for _ in range(20):
        model = io.place_model(torch.nn.Linear(64, 64))
        assert device.memory.used_bytes == (64 * 64 + 64) * 4
        del model
    assert device.memory.used_bytes == 0


def test_a_copy_overwrites_device_memory_in_place(io: SimIO, device: SimDevice) -> None:
    target, held = io.allocate((2, 3), torch.float32), device.memory.used_bytes
    io.copy(target, torch.ones(2, 3))
    np.testing.assert_array_equal(io.download({"x": target}).arrays()["x"], np.ones((2, 3), np.float32))
    assert device.memory.used_bytes == held


def test_a_copy_to_another_device_is_refused(io: SimIO) -> None:
    with pytest.raises(WrongDeviceError, match="cannot write to"):
        io.copy(SimIO(SimDevice(1, 1 << 20)).allocate((2,), torch.float32), torch.ones(2))
