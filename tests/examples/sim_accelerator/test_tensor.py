"""Device memory that the host cannot read, and accounts that follow its tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from core_engine_sim.device import SimDevice
from core_engine_sim.errors import HostAccessError, OutsideProgramError

from core_engine.plugin import OutOfDeviceMemory

HOST_ACCESSES: dict[str, Callable[[torch.Tensor], object]] = {
    "numpy": lambda tensor: tensor.numpy(),
    "asarray": np.asarray,
    "item": lambda tensor: tensor.item(),
    "tolist": lambda tensor: tensor.tolist(),
    "cpu": lambda tensor: tensor.cpu(),
    "to": lambda tensor: tensor.to("cpu"),
    "bool": bool,
    "int": int,
    "float": float,
    "index": operator.index,
}


@pytest.mark.parametrize("access", HOST_ACCESSES.values(), ids=HOST_ACCESSES.keys())
@pytest.mark.parametrize("inference", [True, False])
def test_the_host_cannot_read_a_device_tensor(
    device: SimDevice, access: Callable[[torch.Tensor], object], inference: bool
) -> None:
    tensor = device.copy_from_host(torch.tensor(3))
    with torch.inference_mode(inference), pytest.raises(HostAccessError, match="SimIO"):
        access(tensor)


@pytest.mark.parametrize("inference", [True, False])
def test_the_host_cannot_compute_with_a_device_tensor(device: SimDevice, inference: bool) -> None:
    tensor = device.copy_from_host(torch.ones(3))
    with torch.inference_mode(inference), pytest.raises(OutsideProgramError, match=r"SimPrograms\.compile"):
        tensor + tensor


def test_the_host_sees_shape_dtype_and_device(device: SimDevice) -> None:
    tensor = device.zeros((2, 3), torch.bfloat16)
    assert (tensor.shape, tensor.dtype, str(tensor.sim_device)) == ((2, 3), torch.bfloat16, "sim:0")
    assert repr(tensor) == "SimTensor([2, 3], bfloat16, sim:0)"


def test_memory_is_counted_in_bytes_and_freed_with_the_tensor(device: SimDevice) -> None:
    tensor = device.zeros((4, 8), torch.bfloat16)
    assert device.memory.used_bytes == 64
    del tensor
    assert device.memory.used_bytes == 0


def test_a_view_shares_memory_and_keeps_it_alive(device: SimDevice, run: Callable[..., Any]) -> None:
    with torch.inference_mode():
        tensor = device.zeros((4, 8), torch.float32)
        view = run(lambda x: x[1:3].transpose(0, 1), tensor)
    assert device.memory.used_bytes == 128
    del tensor
    assert device.memory.used_bytes == 128
    del view
    assert device.memory.used_bytes == 0


def test_a_parameter_of_a_device_tensor_shares_its_memory(device: SimDevice) -> None:
    parameter = torch.nn.Parameter(device.zeros((4, 8), torch.float32), requires_grad=False)
    assert device.memory.used_bytes == 128
    del parameter
    assert device.memory.used_bytes == 0


def test_a_copy_does_not_follow_its_source(device: SimDevice) -> None:
    source = torch.zeros(3)
    tensor = device.copy_from_host(source)
    source.fill_(1)
    assert tensor.contents.tolist() == [0, 0, 0]


def test_allocating_beyond_the_limit_is_refused_before_the_host_spends_memory(device: SimDevice) -> None:
    with pytest.raises(OutOfDeviceMemory):
        device.zeros((1 << 40,), torch.float32)
    assert device.memory.used_bytes == 0
