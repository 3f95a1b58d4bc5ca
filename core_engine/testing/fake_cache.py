"""FakeKVCache: a pool of blocks that remembers which prefix was written to each slot. Torch-free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from core_engine.kv_cache.specs import KVCacheConfig, KVCacheGroup

__all__ = ["FakeKVCache", "ScheduleViolation", "require"]


class ScheduleViolation(AssertionError):
    """A step breaks the contract of `SchedulerOutput`; the runner's state is undefined afterwards."""


def require(condition: bool, message: str) -> None:
    """Raise `ScheduleViolation` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ScheduleViolation(message)


class FakeKVCache:
    """The cache of one KV-cache group: states (see `FakeModel`) in place of keys and values."""

    def __init__(self, config: KVCacheConfig, group: KVCacheGroup) -> None:
        self._config = config
        #: ``[num_blocks, block_size]``: the state written to each slot, 0 for none.
        self._slots = np.zeros((config.num_blocks, config.block_size), dtype=np.uint64)
        #: block → live tables that hold it.
        self._holders: Counter[int] = Counter()
        windows = [spec.sliding_window for spec in group.layers.values()]
        full = not windows or None in windows
        #: How many positions before a token the group's layers read.
        self._reach = config.max_model_len if full else max(w for w in windows if w is not None) - 1

    def append(self, name: str, table: list[int], blocks: Iterable[int]) -> None:
        """Append ``blocks`` to the table of request ``name``."""
        for block in blocks:
            require(0 <= block < self._config.num_blocks, f"{name!r}: block {block} is not in the pool")
            require(block == 0 or block not in table, f"{name!r}: block {block} twice in its table")
            table.append(block)
            self._holders[block] += 1
        width = self._config.max_blocks_per_request
        require(len(table) <= width, f"{name!r}: {len(table)} blocks, a table holds {width}")

    def release(self, table: list[int]) -> None:
        """Count a table's blocks as no longer held; what was written stays, as in a real pool."""
        self._holders.subtract(table)

    def check(self, name: str, table: Sequence[int], states: Sequence[int], start: int, size: int) -> None:
        """Check that a request may compute positions ``start`` to ``start + size``.

        The positions before ``start`` that a layer can see must stand in the table's blocks, the
        table must cover the new ones, and no other live table may hold a block that is written.
        """
        block_size = self._config.block_size
        room = len(table) * block_size
        require(room >= start + size, f"{name!r}: blocks for {room} tokens, {start + size} are needed")
        positions = np.arange(max(0, start - self._reach), start)
        blocks = np.array(table, dtype=np.int64)[positions // block_size]
        found = self._slots[blocks, positions % block_size]
        expected = np.array(states[:start], dtype=np.uint64)[positions]
        wrong = positions[(found != expected) | (blocks == 0)]
        if wrong.size:
            at = int(wrong[0])
            block = table[at // block_size]
            raise ScheduleViolation(
                f"{name!r}: position {at} counts as computed, but block {block} does not hold it"
            )
        for block in table[start // block_size : -(-(start + size) // block_size)]:
            require(block != 0, f"{name!r}: writes to the null block")
            holders = self._holders[block]
            require(holders == 1, f"{name!r}: writes to block {block}, which {holders} requests hold")

    def write(self, table: Sequence[int], states: Sequence[int], start: int, size: int) -> None:
        """Write positions ``start`` to ``start + size`` of a request."""
        positions = np.arange(start, start + size)
        blocks = np.array(table, dtype=np.int64)[positions // self._config.block_size]
        written = np.array(states[start : start + size], dtype=np.uint64)
        self._slots[blocks, positions % self._config.block_size] = written
