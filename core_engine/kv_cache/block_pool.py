"""BlockPool: which blocks are free, who counts on the others, and which prefix a block holds."""

from __future__ import annotations

from collections.abc import Iterable

from core_engine.kv_cache.free_list import FreeList

__all__ = ["NULL_BLOCK", "BlockPool"]

#: Padding writes go here; no request ever owns it.
NULL_BLOCK = 0


class BlockPool:
    """Fixed-size blocks with reference counts and a map from prefix hashes to blocks.

    A block with no reference stands in the free list but keeps its content and its hash until it is
    allocated again, least recently freed first; a request that hits it takes it back. Several blocks
    may hold the same hash: requests that compute one prefix at the same time do not wait for each
    other.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = FreeList(num_blocks)
        for block in range(NULL_BLOCK + 1, num_blocks):
            self._free.append(block)
        self._references = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._blocks_of: dict[bytes, list[int]] = {}

    @property
    def num_usable(self) -> int:
        """How many blocks can hold tokens: all but the null block."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """How many blocks no request counts on, cached ones included."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks, at most ``num_free``, with one reference each.

        What they held is forgotten.
        """
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
            if self._hash_of[block] is not None:
                self._forget(block)
        return blocks

    def acquire(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of ``blocks``, which `find` returned."""
        for block in blocks:
            if self._references[block] == 0:
                self._free.remove(block)
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop a reference from each of ``blocks``.

        Those without any go to the free list in this order, so give a request's tail before its head:
        a tail is of use only while its head is there.
        """
        for block in blocks:
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)

    def find(self, block_hash: bytes) -> int | None:
        """Return a block that holds the prefix ``block_hash``, or None."""
        blocks = self._blocks_of.get(block_hash)
        return blocks[0] if blocks else None

    def is_free(self, block: int) -> bool:
        """Say whether no request counts on ``block``."""
        return self._references[block] == 0

    def set_hash(self, block: int, block_hash: bytes) -> None:
        """Record which prefix a referenced, full block holds."""
        if self._hash_of[block] is not None:
            self._forget(block)
        self._hash_of[block] = block_hash
        self._blocks_of.setdefault(block_hash, []).append(block)

    def forget(self, block_hash: bytes) -> None:
        """Forget which blocks hold the prefix ``block_hash``; references stay."""
        for block in self._blocks_of.pop(block_hash, ()):
            self._hash_of[block] = None

    def forget_all(self) -> None:
        """Forget every hash; references stay."""
        self._hash_of = [None] * self.num_blocks
        self._blocks_of.clear()

    def _forget(self, block: int) -> None:
        block_hash = self._hash_of[block]
        assert block_hash is not None  # both callers checked
        self._hash_of[block] = None
        blocks = self._blocks_of[block_hash]
        blocks.remove(block)
        if not blocks:
            del self._blocks_of[block_hash]
