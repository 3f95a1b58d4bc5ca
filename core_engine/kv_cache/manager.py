"""KVCacheManager: the block tables of requests over one pool, and the cache of their prefixes."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from core_engine.errors import ConfigError
from core_engine.kv_cache.block_pool import BlockPool
from core_engine.kv_cache.hashing import ExtraKey, block_hash, chain_root, new_secret
from core_engine.kv_cache.specs import KVCacheConfig

__all__ = ["BlockTable", "KVCacheManager"]


@dataclass(slots=True)
class BlockTable:
    """One request's blocks, in the order of its positions; made by `KVCacheManager.new_table`.

    The hashes outlive the blocks: a preempted request looks its own prefix up with them.
    """

    root: bytes
    block_ids: list[int] = field(default_factory=list)
    #: Hashes of the leading full blocks, as far as they were needed.
    hashes: list[bytes] = field(default_factory=list)
    #: How many leading blocks the cache knows.
    num_committed: int = 0
    #: The manager's count of resets when the first block was taken.
    generation: int = 0


class KVCacheManager:
    """Gives blocks to requests and finds prefixes that are cached already.

    There is one KV-cache group for now, so one table per request; with more groups a table holds
    a list per group, and the length of a hit is the boundary that all groups share.
    """

    def __init__(self, config: KVCacheConfig) -> None:
        if len(config.groups) != 1:
            raise ConfigError(f"the KV cache manager serves one group of layers, got {len(config.groups)}")
        if config.num_blocks < 2:
            raise ConfigError(
                f"a pool of {config.num_blocks} blocks holds no token: block 0 is for padding; give 2 or more"
            )
        self.config = config
        self.block_size = config.block_size
        self.pool = BlockPool(config.num_blocks)
        self._secret = new_secret()
        self._generation = 0

    def new_table(self, extra_keys: tuple[ExtraKey, ...] = ()) -> BlockTable:
        """Return an empty table; requests share blocks only when their ``extra_keys`` are equal."""
        return BlockTable(chain_root(self._secret, extra_keys))

    def num_blocks_for(self, num_tokens: int) -> int:
        """How many blocks ``num_tokens`` take."""
        return -(-num_tokens // self.block_size)

    def find_cached_prefix(self, table: BlockTable, tokens: array[int], max_tokens: int) -> list[int]:
        """Return the blocks that hold the longest cached prefix of ``tokens``, of at most ``max_tokens``.

        The blocks are not taken: give them to `allocate` before anything else is allocated.
        """
        found: list[int] = []
        for index in range(max_tokens // self.block_size):
            block = self.pool.find(self._hash(table, tokens, index))
            if block is None:
                break
            found.append(block)
        return found

    def allocate(
        self, table: BlockTable, num_tokens: int, *, cached: list[int] | None = None, keep_free: int = 0
    ) -> list[int] | None:
        """Extend ``table`` to hold ``num_tokens`` and return the blocks appended to it.

        ``cached`` are the leading blocks of a still empty table. Returns None and takes nothing when
        fewer than ``keep_free`` blocks would be left free.
        """
        cached = cached or []
        num_new = self.num_blocks_for(num_tokens) - len(table.block_ids) - len(cached)
        # A cached block that nobody counts on is free now, and not any more once it is taken.
        num_revived = sum(map(self.pool.is_free, cached))
        if max(num_new, 0) + num_revived + keep_free > self.pool.num_free:
            return None
        if not table.block_ids:
            table.generation = self._generation
            table.num_committed = len(cached)
        self.pool.acquire(cached)
        blocks = cached + self.pool.allocate(max(num_new, 0))
        table.block_ids += blocks
        return blocks

    def commit(self, table: BlockTable, tokens: array[int], num_tokens: int) -> None:
        """Let others find the full blocks of the first ``num_tokens`` tokens, which are computed and known.

        Does nothing for a table that was filled before the cache was last reset.
        """
        if table.generation != self._generation:
            return
        num_full = num_tokens // self.block_size
        for index in range(table.num_committed, num_full):
            self.pool.set_hash(table.block_ids[index], self._hash(table, tokens, index))
        table.num_committed = max(table.num_committed, num_full)

    def free(self, table: BlockTable) -> None:
        """Give all blocks of ``table`` back; what was committed stays in the cache until it is evicted."""
        self.pool.release(reversed(table.block_ids))
        table.block_ids = []
        table.num_committed = 0

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes, those of blocks in use included.

        Requests that hold blocks keep them and go on; what they wrote before and write from now on
        is never found by others. Returns False when there were such requests.
        """
        self.pool.forget_all()
        self._generation += 1
        return self.pool.num_free == self.pool.num_usable

    def _hash(self, table: BlockTable, tokens: array[int], index: int) -> bytes:
        hashes = table.hashes
        while len(hashes) <= index:
            start = len(hashes) * self.block_size
            parent = hashes[-1] if hashes else table.root
            hashes.append(block_hash(parent, tokens[start : start + self.block_size].tobytes()))
        return hashes[index]
