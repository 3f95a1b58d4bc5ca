"""LoRAColumn: the adapter slot of each row of the input batch."""

from __future__ import annotations

import numpy as np

from core_engine._ragged import IntArray
from core_engine.lora.slots import LoRASlots
from core_engine.worker.shape_policy import ShapePolicy

__all__ = ["LoRAColumn"]


class LoRAColumn:
    """Takes a slot for each request that gets a row, and gives it back with the row.

    ``slots`` is None while LoRA is off. Devices with fixed shapes compute every step with adapters, so
    that there is one program; others leave them out of steps in which no token has one.
    """

    def __init__(self, slots: LoRASlots | None, num_rows: int, shapes: ShapePolicy) -> None:
        self._slots = slots
        self._always = bool(shapes.warm_up_shapes())
        self._lora_ids = [0] * num_rows
        self._row_slots: IntArray = np.full(num_rows, -1, dtype=np.int32)

    def occupy(self, row: int, lora_id: int) -> None:
        """Note the adapter of the request that gets ``row``; its weights are written if they must be."""
        if self._slots is not None:
            self._row_slots[row] = self._slots.acquire(lora_id)
            self._lora_ids[row] = lora_id

    def vacate(self, row: int) -> None:
        """Give back what the holder of ``row`` had."""
        if self._slots is not None:
            self._slots.release(self._lora_ids[row])
            self._lora_ids[row], self._row_slots[row] = 0, -1

    def gather(self, token_rows: IntArray, num_padded: int) -> IntArray | None:
        """Return int32 ``[num_padded]``, the slot of each token by its row; None where none is needed."""
        if self._slots is None:
            return None
        slots = np.full(num_padded, -1, dtype=np.int32)
        slots[: len(token_rows)] = self._row_slots[token_rows]
        return slots if self._always or bool((slots >= 0).any()) else None
