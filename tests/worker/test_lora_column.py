from __future__ import annotations

import numpy as np

from core_engine.lora.slots import LoRASlots
from core_engine.worker.lora_column import LoRAColumn
from core_engine.worker.shape_policy import ExactShapes, ShapePolicy, StepKind, StepShape


class OneShape(ShapePolicy):
    def pad(self, num_tokens: int, num_reqs: int, kind: StepKind) -> StepShape:
        return StepShape(8, 4, kind)

    def warm_up_shapes(self) -> tuple[StepShape, ...]:
        return (StepShape(8, 4, StepKind.MIXED),)


def column(shapes: ShapePolicy, *, num_slots: int = 2) -> LoRAColumn:
    return LoRAColumn(LoRASlots(num_slots, lambda lora_id, slot: None), 4, shapes)


def rows(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(numbers, dtype=np.int32)


def test_each_token_has_the_slot_of_its_row_and_padding_none() -> None:
    slots = column(ExactShapes())
    slots.occupy(0, 7)
    slots.occupy(1, 0)
    slots.occupy(2, 9)
    gathered = slots.gather(rows(0, 0, 1, 2), 6)
    assert gathered is not None
    assert gathered.dtype == np.int32
    assert gathered.tolist() == [0, 0, -1, 1, -1, -1]


def test_where_shapes_are_free_a_step_without_adapters_needs_no_slots() -> None:
    slots = column(ExactShapes())
    slots.occupy(0, 7)
    slots.occupy(1, 0)
    assert slots.gather(rows(1, 1), 2) is None


def test_where_shapes_are_fixed_every_step_has_slots() -> None:
    gathered = column(OneShape()).gather(rows(1, 1), 8)
    assert gathered is not None
    assert gathered.tolist() == [-1] * 8


def test_a_row_that_is_left_gives_its_slot_back() -> None:
    slots = column(ExactShapes(), num_slots=1)
    slots.occupy(0, 7)
    slots.vacate(0)
    slots.occupy(1, 8)
    assert slots.gather(rows(0, 1), 2) is not None


def test_without_lora_there_is_nothing() -> None:
    off = LoRAColumn(None, 4, OneShape())
    off.occupy(0, 0)
    off.vacate(0)
    assert off.gather(rows(0), 8) is None
