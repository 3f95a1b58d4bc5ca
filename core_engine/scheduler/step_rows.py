"""StepRows: the requests of a step under construction, and the blocks that they gain."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from core_engine._ragged import IntArray, Ragged
from core_engine.kv_cache.manager import GroupBlocks
from core_engine.scheduler.columns import Slots
from core_engine.scheduler.request import RequestState

__all__ = ["RunningSet", "StepRows"]

_NO_BLOCKS: IntArray = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class RunningSet:
    """The running requests in order, as columns; made anew only when the set changes.

    ``request_ids`` is handed to the runner as it is, which sees by its identity that nothing changed.
    """

    requests: list[RequestState]
    request_ids: tuple[str, ...]
    slots: Slots

    @classmethod
    def of(cls, requests: list[RequestState]) -> RunningSet:
        """Build the columns over ``requests``, which it keeps."""
        return cls(
            requests,
            tuple([request.request_id for request in requests]),
            np.fromiter((request.slot for request in requests), dtype=np.intp, count=len(requests)),
        )


@dataclass(slots=True)
class StepRows:
    """Row ``i`` of every column is ``requests[i]``."""

    requests: list[RequestState]
    request_ids: tuple[str, ...]
    slots: Slots
    #: int32: tokens to compute now.
    granted: IntArray
    #: Row → the blocks that it gains.
    new_blocks: dict[int, GroupBlocks]
    #: Row → drafts, counted in ``granted``; no row moves once there are any.
    drafts: dict[int, list[int]] = field(default_factory=dict)

    @classmethod
    def none(cls) -> StepRows:
        """Return a step without rows."""
        return cls([], (), np.zeros(0, dtype=np.intp), _NO_BLOCKS, {})

    def drop_idle(self) -> None:
        """Drop the rows that got no token; none of them gained a block."""
        if np.count_nonzero(self.granted) == len(self.granted):
            return
        kept = self.granted.nonzero()[0]
        new_row = {row: index for index, row in enumerate(kept.tolist())}
        self.requests = [self.requests[row] for row in new_row]
        self.request_ids = tuple([request.request_id for request in self.requests])
        self.slots, self.granted = self.slots[kept], self.granted[kept]
        self.new_blocks = {new_row[row]: blocks for row, blocks in self.new_blocks.items()}

    def append(self, requests: list[RequestState], granted: list[int], blocks: list[GroupBlocks]) -> None:
        """Append requests that were admitted."""
        start = len(self.requests)
        self.new_blocks.update(enumerate(blocks, start))
        self.requests = self.requests + requests
        self.request_ids += tuple([request.request_id for request in requests])
        slots = np.array([request.slot for request in requests], dtype=np.intp)
        self.slots = np.concatenate([self.slots, slots])
        self.granted = np.concatenate([self.granted, np.array(granted, dtype=np.int32)])

    def add_drafts(self, row: int, drafts: list[int]) -> None:
        """Let ``row`` compute ``drafts`` after its known tokens."""
        self.drafts[row] = drafts
        self.granted[row] += len(drafts)

    def draft_rows(self) -> Ragged | None:
        """Return the drafts of every row; None where there are none."""
        if not self.drafts:
            return None
        return Ragged.from_rows(self.drafts.get(row, ()) for row in range(len(self.requests)))

    def block_rows(self, num_groups: int) -> tuple[Ragged, ...]:
        """Return each group's new blocks of every row."""
        offsets = np.zeros(len(self.requests) + 1, dtype=np.int32)
        if not self.new_blocks:
            return (Ragged(_NO_BLOCKS, offsets),) * num_groups
        rows = sorted(self.new_blocks)
        gained = [self.new_blocks[row] for row in rows]
        offsets[[row + 1 for row in rows]] = [len(blocks[0]) for blocks in gained]
        np.cumsum(offsets, out=offsets)
        columns = [[block for blocks in gained for block in blocks[group]] for group in range(num_groups)]
        return tuple([Ragged(np.array(column, dtype=np.int32), offsets) for column in columns])
