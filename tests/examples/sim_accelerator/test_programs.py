"""One compilation per program and signature, none after warm-up."""

from __future__ import annotations

import pytest
import torch
from core_engine_sim.device import SimDevice
from core_engine_sim.errors import UnpreparedShapeError
from core_engine_sim.programs import SimPrograms, signature_of


def double(x: torch.Tensor, times: int = 2) -> torch.Tensor:
    return x * times


@pytest.fixture
def programs(device: SimDevice) -> SimPrograms:
    return SimPrograms(device, strict_shapes=False)


def test_a_program_is_compiled_at_its_first_call(programs: SimPrograms, device: SimDevice) -> None:
    program = programs.compile("double", double)
    assert programs.num_programs() == 0
    program(device.zeros((2,), torch.float32))
    assert programs.num_programs() == 1


def test_the_same_signature_is_compiled_once(programs: SimPrograms, device: SimDevice) -> None:
    program = programs.compile("double", double)
    program(device.zeros((2,), torch.float32))
    program(device.copy_from_host(torch.ones(2)))
    assert programs.num_programs() == 1


def test_shape_dtype_static_argument_and_name_are_the_signature(
    programs: SimPrograms, device: SimDevice
) -> None:
    program, other = programs.compile("double", double), programs.compile("other", double)
    tensor = device.zeros((2,), torch.float32)
    program(tensor)
    program(device.zeros((3,), torch.float32))
    program(device.zeros((2,), torch.bfloat16))
    program(tensor, 3)
    other(tensor)
    assert programs.num_programs() == 5


def test_nested_arguments_are_described_by_their_tensors(device: SimDevice) -> None:
    tensor = device.zeros((2, 3), torch.int32)
    assert signature_of((({"b": tensor, "a": 1},), True)) == (((("a", 1), ("b", "int32[2, 3]")),), True)


def test_after_warm_up_a_new_shape_is_counted(programs: SimPrograms, device: SimDevice) -> None:
    program = programs.compile("double", double)
    programs.seal()
    program(device.zeros((2,), torch.float32))
    assert programs.num_programs() == 1


def test_after_warm_up_a_strict_device_refuses_a_new_shape_and_names_it(device: SimDevice) -> None:
    programs = SimPrograms(device, strict_shapes=True)
    program = programs.compile("double", double)
    program(device.zeros((2,), torch.float32))
    programs.seal()
    program(device.zeros((2,), torch.float32))
    with pytest.raises(UnpreparedShapeError, match=r"'double'.*float32\[7\]"):
        program(device.zeros((7,), torch.float32))
    assert programs.num_programs() == 1
