"""A small simulated device, and programs that run on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from core_engine_sim.device import SimDevice
from core_engine_sim.programs import SimPrograms

MIB = 1 << 20


@pytest.fixture
def device() -> SimDevice:
    return SimDevice(index=0, memory_bytes=MIB)


@pytest.fixture
def run(device: SimDevice) -> Callable[..., Any]:
    """Run a function of device tensors as a program of ``device``."""

    def run_program(fn: Callable[..., Any], *args: Any) -> Any:
        return SimPrograms(device, strict_shapes=False).compile("test", fn)(*args)

    return run_program
