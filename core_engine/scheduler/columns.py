"""RequestColumns: the numbers of the running requests that change every step, as numpy columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from core_engine._ragged import IntArray

__all__ = ["RequestColumns", "Slots"]

#: Indices into the columns; numpy gathers fastest with its own index type.
Slots = npt.NDArray[np.intp]


class RequestColumns:
    """int32 columns over slots; a request holds a slot while it runs or has steps in flight.

    * ``num_computed``: tokens whose keys and values are in the cache once all scheduled steps have run.
    * ``num_tokens``: tokens that the runner will know then. Sampled ones count from the moment their
      step is scheduled, before their ids are known here.
    * ``max_computed``: how many of its tokens can ever be needed in the cache; the last one is not.
    * ``capacity``: tokens that fit into the request's blocks.
    * ``commit_at``: once this many tokens are computed and known, another block is full.
    * ``free_at``: once this many tokens are processed, a block behind a window can be given back.
    * ``num_in_flight``: steps that were scheduled and not updated yet.
    * ``epoch``: counts how often the slot's holder left the running set. A step remembers it, so
      that a late result is recognised. It is never set back.
    """

    def __init__(self, num_slots: int) -> None:
        self._table: IntArray = np.zeros((8, num_slots), dtype=np.int32)
        self.num_computed, self.num_tokens, self.max_computed, self.capacity = self._table[:4]
        self.commit_at, self.free_at, self.num_in_flight, self.epoch = self._table[4:]
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """How many slots nobody holds."""
        return len(self._free)

    def take_running(self, slots: Slots) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Return copies of num_computed, num_tokens, max_computed and capacity at ``slots``."""
        computed, tokens, max_computed, capacity = self._table[:4].take(slots, axis=1)
        return computed, tokens, max_computed, capacity

    def occupy(
        self,
        *,
        num_computed: int,
        num_tokens: int,
        max_computed: int,
        capacity: int,
        commit_at: int,
        free_at: int,
    ) -> int:
        """Take a free slot for a request that is admitted; returns it."""
        slot = self._free.pop()
        self._table[:7, slot] = (num_computed, num_tokens, max_computed, capacity, commit_at, free_at, 0)
        return slot

    def vacate(self, slot: int) -> None:
        """Give ``slot`` back."""
        self._free.append(slot)
