"""Programs compute what torch computes, on device memory only, and never what depends on data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from core_engine_sim.device import SimDevice
from core_engine_sim.errors import (
    DynamicShapeError,
    HostAccessError,
    OutsideProgramError,
    SimError,
    WrongDeviceError,
)
from core_engine_sim.execution import launch
from core_engine_sim.tensor import SimTensor

from core_engine.plugin import OutOfDeviceMemory

Run = Callable[..., Any]


@pytest.fixture(autouse=True, params=[True, False], ids=["inference_mode", "plain"])
def _both_modes(request: pytest.FixtureRequest) -> Any:
    """Under inference mode whole operations arrive, without it their parts; both must do."""
    with torch.inference_mode(request.param), torch.no_grad():
        yield


def same(device: SimDevice, run: Run, fn: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> bool:
    result = run(fn, *(device.copy_from_host(tensor) for tensor in inputs))
    assert isinstance(result, SimTensor)
    return torch.equal(result.contents, fn(*inputs))


def test_a_linear_layer_gives_the_hosts_numbers(device: SimDevice, run: Run) -> None:
    assert same(device, run, torch.nn.functional.linear, torch.randn(3, 8), torch.randn(5, 8))


def test_new_tensors_lie_on_the_device(device: SimDevice, run: Run) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[0], dtype=x.dtype, device=x.device)
        return torch.where(places > 0, x, -1.0) + torch.ones(1) + torch.tensor(0.5) + x.new_zeros(1)

    assert same(device, run, fn, torch.randn(4))


def test_writing_by_index_changes_the_tensor_in_place(device: SimDevice, run: Run) -> None:
    cache = device.zeros((4, 2), torch.float32)
    slots = device.copy_from_host(torch.tensor([2, 0]))
    values = device.copy_from_host(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    used = device.memory.used_bytes
    run(lambda c, s, v: c.flatten(0, 0).__setitem__(s, v), cache, slots, values)
    assert cache.contents.tolist() == [[3, 4], [0, 0], [1, 2], [0, 0]]
    assert device.memory.used_bytes == used


def test_an_operation_in_place_returns_its_tensor(device: SimDevice, run: Run) -> None:
    tensor = device.zeros((2,), torch.float32)
    assert run(lambda x: x.add_(1), tensor) is tensor


def test_parts_of_a_split_share_memory(device: SimDevice, run: Run) -> None:
    tensor = device.zeros((4, 8), torch.float32)
    parts = run(lambda x: x.split(2), tensor)
    assert [part.shape for part in parts] == [(2, 8), (2, 8)]
    assert device.memory.used_bytes == 128


def test_results_count_and_intermediates_are_freed(device: SimDevice, run: Run) -> None:
    tensor = device.zeros((4, 8), torch.float32)
    result = run(lambda x: (x + 1).sum(), tensor)
    assert device.memory.used_bytes == 128 + 4
    assert device.memory.peak_bytes == 128 + 128 + 4
    del result


def test_a_result_that_does_not_fit_is_refused_and_the_device_stays_usable(
    device: SimDevice, run: Run
) -> None:
    tensor = device.zeros((1024,), torch.float32)
    with pytest.raises(OutOfDeviceMemory):
        run(lambda x: x[:, None] * x, tensor)
    assert device.memory.used_bytes == 4096
    assert run(lambda x: x.sum(), tensor).contents.item() == 0


DATA_DEPENDENT: dict[str, Callable[[torch.Tensor], object]] = {
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "mask": lambda x: x[x > 0],
    "mask write": lambda x: x.__setitem__(x > 0, 0.0),
    "masked_select": lambda x: torch.masked_select(x, x > 0),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "repeat": lambda x: torch.repeat_interleave(x, x.long()),
    "one_hot": lambda x: torch.nn.functional.one_hot(x.long()),
}


@pytest.mark.parametrize("fn", DATA_DEPENDENT.values(), ids=DATA_DEPENDENT.keys())
def test_what_depends_on_data_is_refused(
    device: SimDevice, run: Run, fn: Callable[[torch.Tensor], object]
) -> None:
    tensor = device.copy_from_host(torch.ones(3))
    with pytest.raises(DynamicShapeError):
        run(fn, tensor)


def test_one_hot_of_a_stated_width_is_static(device: SimDevice, run: Run) -> None:
    assert same(device, run, lambda x: torch.nn.functional.one_hot(x, 4), torch.tensor([0, 2]))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.item(),
        lambda x: x.cpu(),
        lambda x: x.to("cpu"),
        lambda x: torch.zeros_like(x, device="cpu"),
        lambda x: 1 if x > 0 else 2,
        lambda x: torch.zeros(2)[int(x)],
    ],
    ids=["item", "cpu", "to", "zeros_like", "branch", "int"],
)
def test_a_program_cannot_read_a_value(device: SimDevice, run: Run, fn: Callable[[Any], object]) -> None:
    with pytest.raises(HostAccessError):
        run(fn, device.copy_from_host(torch.tensor(1)))


def test_a_host_tensor_is_refused(device: SimDevice, run: Run) -> None:
    host = torch.ones(3)
    with pytest.raises(WrongDeviceError, match="upload it through SimIO"):
        run(lambda x: x + host, device.copy_from_host(torch.ones(3)))


def test_a_tensor_of_the_other_device_is_refused(device: SimDevice, run: Run) -> None:
    other = SimDevice(index=1, memory_bytes=1 << 20)
    with pytest.raises(WrongDeviceError, match="sim:1"):
        run(lambda x, y: x + y, device.copy_from_host(torch.ones(3)), other.copy_from_host(torch.ones(3)))


def test_a_number_on_the_host_is_a_constant_of_the_program(device: SimDevice, run: Run) -> None:
    factor = torch.tensor(3.0)
    assert same(device, run, lambda x: x * factor, torch.randn(4))


def test_a_refusal_leaves_no_program_running(device: SimDevice, run: Run) -> None:
    with pytest.raises(SimError):
        run(lambda x: x.nonzero(), device.copy_from_host(torch.ones(3)))
    assert type(torch.ones(1) + 1) is torch.Tensor


def test_a_kernel_may_read_what_it_was_given(device: SimDevice, run: Run) -> None:
    def kernel(parts: dict[str, torch.Tensor]) -> torch.Tensor:
        return parts["x"] * (2 if bool(parts["x"].sum() > 0) else 3)

    result = run(lambda x: launch(device, kernel, {"x": x}) + 1, device.copy_from_host(torch.ones(3)))
    assert result.contents.tolist() == [3, 3, 3]


def test_a_kernel_runs_within_a_program_only(device: SimDevice) -> None:
    with pytest.raises(OutsideProgramError, match="kernel 'neg' was launched outside"):
        launch(device, torch.neg, device.copy_from_host(torch.ones(3)))


def test_a_kernels_result_is_counted(device: SimDevice, run: Run) -> None:
    tensor = device.zeros((4,), torch.float32)
    result = run(lambda x: launch(device, torch.neg, x), tensor)
    assert device.memory.used_bytes == 32
    del result
