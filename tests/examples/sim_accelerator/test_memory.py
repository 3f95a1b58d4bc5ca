"""Memory with a hard limit: exact accounts, refusal with the numbers, nothing lost."""

from __future__ import annotations

import pytest
from core_engine_sim.memory import DeviceMemory

from core_engine.plugin import OutOfDeviceMemory


def test_an_allocation_counts_until_it_is_deleted() -> None:
    memory = DeviceMemory(0, 100)
    allocation = memory.allocate(60)
    assert (memory.used_bytes, memory.free_bytes) == (60, 40)
    del allocation
    assert (memory.used_bytes, memory.free_bytes) == (0, 100)


def test_all_of_the_memory_can_be_used() -> None:
    memory = DeviceMemory(0, 100)
    allocation = memory.allocate(100)
    assert memory.free_bytes == 0
    del allocation


def test_too_much_is_refused_with_what_was_asked_used_and_possible() -> None:
    memory = DeviceMemory(1, 100)
    held = memory.allocate(30)
    with pytest.raises(OutOfDeviceMemory, match=r"sim:1 cannot allocate 71 bytes: 30 of 100 .* 70 are free"):
        memory.allocate(71)
    del held


def test_a_refusal_changes_nothing_and_the_device_stays_usable() -> None:
    memory = DeviceMemory(0, 100)
    with pytest.raises(OutOfDeviceMemory):
        memory.allocate(101)
    assert memory.used_bytes == 0
    assert memory.allocate(100).num_bytes == 100


def test_the_peak_is_measured_from_its_reset() -> None:
    memory = DeviceMemory(0, 100)
    large = memory.allocate(80)
    del large
    held = memory.allocate(10)
    memory.reset_peak()
    assert memory.peak_bytes == 10
    short = memory.allocate(25)
    del short
    assert memory.peak_bytes == 35
    del held
