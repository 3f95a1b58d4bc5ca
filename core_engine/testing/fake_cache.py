"""FakeKVCache: a pool of blocks that remembers which prefix was written to each slot. Torch-free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from core_engine.kv_cache.specs import KVCacheConfig

__all__ = ["FakeKVCache", "FakePool", "ScheduleViolation", "require"]


class ScheduleViolation(AssertionError):
    """A step breaks the contract of `SchedulerOutput`; the runner's state is undefined afterwards."""


def require(condition: bool, message: str) -> None:
    """Raise `ScheduleViolation` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ScheduleViolation(message)


class FakePool:
    """The blocks of all KV-cache groups: what was written to them, and who holds them."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        #: ``[num_blocks, block_size]``: the state written to each slot, 0 for none.
        self.slots = np.zeros((num_blocks, block_size), dtype=np.uint64)
        #: block → live tables that hold it.
        self.holders: Counter[int] = Counter()


class FakeKVCache:
    """The cache of one KV-cache group: states (see `FakeModel`) in place of keys and values.

    Every group writes its own states, so that a block which belonged to another group is recognised.
    What lies behind a group's window may belong to others, though it stands in a table.
    """

    def __init__(self, config: KVCacheConfig, group: int, pool: FakePool) -> None:
        self._config = config
        self._pool = pool
        self._mark = np.uint64(group * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
        window = config.groups[group].sliding_window
        #: How many positions before a token the group's layers read.
        self._reach = config.max_model_len if window is None else window - 1

    def append(self, name: str, table: list[int], blocks: Iterable[int]) -> None:
        """Append ``blocks`` to the table of request ``name``."""
        for block in blocks:
            require(0 <= block < self._config.num_blocks, f"{name!r}: block {block} is not in the pool")
            require(block == 0 or block not in table, f"{name!r}: block {block} twice in its table")
            table.append(block)
            self._pool.holders[block] += 1
        width = self._config.max_blocks_per_request
        require(len(table) <= width, f"{name!r}: {len(table)} blocks, a table holds {width}")

    def release(self, table: list[int]) -> None:
        """Count a table's blocks as no longer held; what was written stays, as in a real pool."""
        self._pool.holders.subtract(table)

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
        found = self._pool.slots[blocks, positions % block_size]
        expected = np.array(states[:start], dtype=np.uint64)[positions] ^ self._mark
        wrong = positions[(found != expected) | (blocks == 0)]
        if wrong.size:
            at = int(wrong[0])
            block = table[at // block_size]
            raise ScheduleViolation(
                f"{name!r}: position {at} counts as computed, but block {block} does not hold it"
            )
        for block in table[start // block_size : -(-(start + size) // block_size)]:
            require(block != 0, f"{name!r}: writes to the null block")
            holders = self._pool.holders[block]
            require(holders == 1, f"{name!r}: writes to block {block}, which {holders} requests hold")

    def write(self, table: Sequence[int], states: Sequence[int], start: int, size: int) -> None:
        """Write positions ``start`` to ``start + size`` of a request."""
        positions = np.arange(start, start + size)
        blocks = np.array(table, dtype=np.int64)[positions // self._config.block_size]
        written = np.array(states[start : start + size], dtype=np.uint64) ^ self._mark
        self._pool.slots[blocks, positions % self._config.block_size] = written

    def let_go(self, table: list[int], num_computed: int) -> None:
        """Forget that a table holds what lies behind the window once ``num_computed`` tokens are there."""
        index = max(0, num_computed - self._reach) // self._config.block_size - 1
        while index >= 0 and table[index]:
            self._pool.holders[table[index]] -= 1
            table[index] = 0
            index -= 1
