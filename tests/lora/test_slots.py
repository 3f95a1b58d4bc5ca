from __future__ import annotations

import pytest

from core_engine.errors import EngineError
from core_engine.lora.slots import LoRASlots


class Written(list[tuple[int, int]]):
    """Takes down what is written: (lora_id, slot)."""

    def slots(self, count: int) -> LoRASlots:
        return LoRASlots(count, lambda lora_id, slot: self.append((lora_id, slot)))


def test_an_adapter_is_written_once_while_it_keeps_its_slot() -> None:
    written = Written()
    slots = written.slots(2)
    assert [slots.acquire(5), slots.acquire(5), slots.acquire(6)] == [0, 0, 1]
    for lora_id in (5, 5, 6):
        slots.release(lora_id)
    assert slots.acquire(5) == 0
    assert written == [(5, 0), (6, 1)]


def test_no_adapter_needs_no_slot() -> None:
    written = Written()
    slots = written.slots(1)
    assert slots.acquire(0) == -1
    slots.release(0)
    assert written == []


def test_the_adapter_unused_longest_makes_room() -> None:
    slots = Written().slots(2)
    first, second = slots.acquire(1), slots.acquire(2)
    slots.release(2)
    slots.release(1)
    assert slots.acquire(3) == second
    assert (slots.slot_of(1), slots.slot_of(2)) == (first, -1)


def test_an_adapter_in_use_never_makes_room() -> None:
    slots = Written().slots(1)
    slots.acquire(1)
    with pytest.raises(EngineError, match="all 1 are in use"):
        slots.acquire(2)
    assert slots.acquire(1) == 0


def test_a_write_that_fails_takes_no_slot() -> None:
    def fail(lora_id: int, slot: int) -> None:
        if lora_id == 1:
            raise EngineError("no")

    slots = LoRASlots(1, fail)
    with pytest.raises(EngineError):
        slots.acquire(1)
    assert slots.acquire(2) == 0


def test_a_forgotten_adapter_gives_its_slot_back_with_its_last_request() -> None:
    written = Written()
    slots = written.slots(1)
    slots.acquire(1)
    slots.forget(1)
    assert slots.slot_of(1) == 0
    slots.release(1)
    assert slots.slot_of(1) == -1
    assert slots.acquire(2) == 0
