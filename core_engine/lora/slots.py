"""LoRASlots: which adapter stands in which slot of the device. Torch-free."""

from __future__ import annotations

from collections.abc import Callable

from core_engine.errors import EngineError

__all__ = ["LoRASlots"]


class LoRASlots:
    """Gives adapters slots while requests use them; the one unused longest makes room for a new one.

    ``write`` (lora_id, slot) puts an adapter's weights into a slot. An adapter keeps its slot when its
    last request leaves, so that the next one finds it there.
    """

    def __init__(self, num_slots: int, write: Callable[[int, int], None]) -> None:
        self._write = write
        self._free = list(range(num_slots - 1, -1, -1))
        # In the order of last use; a key that comes into use or out of it moves to the end.
        self._slot_of: dict[int, int] = {}
        self._num_users: dict[int, int] = {}
        self._leaving: set[int] = set()

    def acquire(self, lora_id: int) -> int:
        """Return the adapter's slot for one more request; 0 is no adapter and has slot -1.

        Raises `EngineError` when all slots are in use: a scheduler must not let that happen.
        """
        if lora_id == 0:
            return -1
        slot = self._slot_of.pop(lora_id, None)
        if slot is None:
            slot = self._take_slot(lora_id)
            try:
                self._write(lora_id, slot)
            except BaseException:
                self._free.append(slot)
                raise
        self._slot_of[lora_id] = slot
        self._num_users[lora_id] = self._num_users.get(lora_id, 0) + 1
        return slot

    def release(self, lora_id: int) -> None:
        """Take back what ``acquire`` gave to one request."""
        if lora_id == 0:
            return
        self._num_users[lora_id] -= 1
        if self._num_users[lora_id]:
            return
        del self._num_users[lora_id]
        self._slot_of[lora_id] = self._slot_of.pop(lora_id)
        if lora_id in self._leaving:
            self.forget(lora_id)

    def forget(self, lora_id: int) -> None:
        """Give the adapter's slot back, as soon as no request uses it."""
        if lora_id in self._num_users:
            self._leaving.add(lora_id)
            return
        self._leaving.discard(lora_id)
        slot = self._slot_of.pop(lora_id, None)
        if slot is not None:
            self._free.append(slot)

    def slot_of(self, lora_id: int) -> int:
        """Return the adapter's slot, -1 while it has none."""
        return self._slot_of.get(lora_id, -1)

    def holders(self) -> dict[int, int]:
        """Return slot → lora_id of all slots that hold an adapter."""
        return {slot: lora_id for lora_id, slot in self._slot_of.items()}

    def _take_slot(self, lora_id: int) -> int:
        if self._free:
            return self._free.pop()
        unused = next((other for other in self._slot_of if other not in self._num_users), None)
        if unused is None:
            raise EngineError(
                f"adapter {lora_id} needs a slot, but all {len(self._slot_of)} are in use by running requests"
            )
        return self._slot_of.pop(unused)
