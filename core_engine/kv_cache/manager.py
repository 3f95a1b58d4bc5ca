"""KVCacheManager: the block tables of requests over one pool, and the cache of their prefixes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle

from core_engine.errors import ConfigError
from core_engine.kv_cache.block_pool import NULL_BLOCK, BlockPool
from core_engine.kv_cache.group_kind import NEVER
from core_engine.kv_cache.hashing import ExtraKey, block_hash, chain_root, new_secret
from core_engine.kv_cache.specs import KVCacheConfig

__all__ = ["BlockTable", "CachedPrefix", "GroupBlocks", "KVCacheManager"]

#: Block ids, one list per group. The lists of a table are of one length.
GroupBlocks = list[list[int]]


@dataclass(slots=True)
class BlockTable:
    """One request's blocks, in the order of its positions; made by `KVCacheManager.new_table`.

    The leading ``num_null[g]`` entries of group ``g`` are the null block: the group does not need those
    positions any more. The hashes outlive the blocks: a preempted request looks its own prefix up with
    them.
    """

    root: bytes
    block_ids: GroupBlocks
    num_null: list[int]
    #: Hashes of the leading full blocks, as far as they were needed.
    hashes: list[bytes] = field(default_factory=list)
    #: How many leading blocks the cache knows.
    num_committed: int = 0
    #: The manager's count of resets when the first block was taken.
    generation: int = 0

    def __len__(self) -> int:
        """How many entries each group has."""
        return len(self.block_ids[0])

    @property
    def num_held(self) -> int:
        """How many blocks the request holds in all groups."""
        return len(self) * len(self.block_ids) - sum(self.num_null)


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The leading entries of a table that the cache already has, as in `BlockTable`."""

    block_ids: GroupBlocks
    num_null: list[int]

    def __len__(self) -> int:
        """How many entries each group has."""
        return len(self.block_ids[0])


class KVCacheManager:
    """Gives blocks to requests and finds prefixes that are cached already.

    A table has one list of blocks per KV-cache group, all from one pool. The tokens of a block are
    hashed once; the pool knows the block of each group by that hash and the group's number. What a group
    keeps, when it gives a block back and where a hit may end is its `GroupKind`'s word.
    """

    def __init__(self, config: KVCacheConfig) -> None:
        if config.num_blocks < 2:
            raise ConfigError(
                f"a pool of {config.num_blocks} blocks holds no token: block 0 is for padding; give 2 or more"
            )
        self.config = config
        self.block_size = config.block_size
        #: The longest sequence that the pool holds when it is alone.
        self.num_tokens = config.num_tokens
        self.kinds = config.kinds
        #: Whether a group gives blocks back before its request ends.
        self.frees_early = any(kind.freed_at(0) < NEVER for kind in self.kinds)
        self.pool = BlockPool(config.num_blocks)
        # Appended to a hash: which group's block it names. Nothing for the first.
        self._suffixes = [bytes([group]) if group else b"" for group in range(len(self.kinds))]
        self._secret = new_secret()
        self._generation = 0

    def new_table(self, extra_keys: tuple[ExtraKey, ...] = ()) -> BlockTable:
        """Return an empty table; requests share blocks only when their ``extra_keys`` are equal."""
        return BlockTable(chain_root(self._secret, extra_keys), *self._no_blocks())

    def no_prefix(self) -> CachedPrefix:
        """Return the prefix of a request that takes nothing from the cache."""
        return CachedPrefix(*self._no_blocks())

    def num_blocks_for(self, num_tokens: int) -> int:
        """How many blocks a sequence of ``num_tokens`` holds at most, in all groups."""
        return self.config.peak_blocks(num_tokens)

    def num_blocks_to_come(self, num_tokens: int, length: int, num_null: Sequence[int]) -> int:
        """How many more blocks a sequence holds at most until ``num_tokens`` are computed.

        Its table has ``length`` entries per group now, of which ``num_null`` are null.
        """
        wanted, step_tokens = -(-num_tokens // self.block_size), self.config.max_step_tokens or num_tokens
        total = 0
        for kind, num_gone in zip(self.kinds, num_null, strict=True):
            most = min(wanted, num_gone + kind.peak_blocks(num_tokens, step_tokens))
            total += max(most - length, 0)
        return total

    def find_cached_prefix(self, table: BlockTable, tokens: array[int], max_tokens: int) -> CachedPrefix:
        """Return the blocks that hold the longest cached prefix of ``tokens``, of at most ``max_tokens``.

        It ends where all groups can go on. The blocks are not taken: give them to `allocate` before
        anything else is allocated.
        """

        found: list[dict[int, int]] = [{} for _ in self.kinds]

        def is_cached(group: int, index: int) -> bool:
            block = self.pool.find(self._hash(table, tokens, index) + self._suffixes[group])
            if block is not None:
                found[group][index] = block
            return block is not None

        length, num_agreed = max_tokens // self.block_size, 0
        taken = [range(0)] * len(self.kinds)
        for group in cycle(range(len(self.kinds))):
            taken[group] = self.kinds[group].longest_hit(partial(is_cached, group), length)
            num_agreed = num_agreed + 1 if taken[group].stop == length else 1
            length = taken[group].stop
            if num_agreed == len(self.kinds):
                break
        num_null = [indices.start for indices in taken]
        block_ids = [
            [NULL_BLOCK] * indices.start + [blocks[index] for index in indices]
            for indices, blocks in zip(taken, found, strict=True)
        ]
        return CachedPrefix(block_ids, num_null)

    def allocate(
        self, table: BlockTable, num_tokens: int, *, cached: CachedPrefix | None = None, keep_free: int = 0
    ) -> GroupBlocks | None:
        """Extend ``table`` to hold ``num_tokens`` and return the entries appended to it.

        ``cached`` are the leading entries of a still empty table. Returns None and takes nothing when
        fewer than ``keep_free`` blocks would be left free.
        """
        rows, num_groups, pool = table.block_ids, len(self.kinds), self.pool
        num_new = -(-num_tokens // self.block_size) - len(rows[0])
        num_needed = keep_free
        hits: list[int] = []
        if cached is not None:
            num_new -= len(cached)
            hits = [block for row in cached.block_ids for block in row if block != NULL_BLOCK]
            # A cached block that nobody counts on is free now, and not any more once it is taken.
            num_needed += sum(map(pool.is_free, hits))
        if num_new < 0:
            num_new = 0
        if num_new * num_groups + num_needed > pool.num_free:
            return None
        if not rows[0]:
            table.generation = self._generation
            table.num_committed = 0 if cached is None else len(cached)
        if hits:
            pool.acquire(hits)
        new = pool.allocate(num_new * num_groups)
        appended = [new[group * num_new : (group + 1) * num_new] for group in range(num_groups)]
        if cached is not None:
            table.num_null = list(cached.num_null)
            appended = [head + tail for head, tail in zip(cached.block_ids, appended, strict=True)]
        for group, row in enumerate(rows):
            row += appended[group]
        return appended

    def commit(self, table: BlockTable, tokens: array[int], num_tokens: int) -> None:
        """Let others find the full blocks of the first ``num_tokens`` tokens, which are computed and known.

        Does nothing for a table that was filled before the cache was last reset.
        """
        if table.generation != self._generation:
            return
        num_full = num_tokens // self.block_size
        for index in range(table.num_committed, num_full):
            name = self._hash(table, tokens, index)
            for group, row in enumerate(table.block_ids):
                if row[index] != NULL_BLOCK:
                    self.pool.set_hash(row[index], name + self._suffixes[group])
        table.num_committed = max(table.num_committed, num_full)

    def free_behind(self, table: BlockTable, num_processed: int) -> int:
        """Give back the blocks that no token after the first ``num_processed`` reads.

        Those tokens are processed (`GroupKind.freed_at`) and committed as far as they ever will be.
        What was committed stays in the cache until it is evicted. Returns the number of processed
        tokens at which there is more to give back.
        """
        following = NEVER
        for group, kind in enumerate(self.kinds):
            first = stop = table.num_null[group]
            while (freed_at := kind.freed_at(stop)) <= num_processed:
                stop += 1
            if stop > first:
                row = table.block_ids[group]
                self.pool.release(reversed(row[first:stop]))
                row[first:stop] = [NULL_BLOCK] * (stop - first)
                table.num_null[group] = stop
            following = min(following, freed_at)
        return following

    def forget(self, table: BlockTable) -> None:
        """Let nobody find a prefix of ``table``, now or once it grows: its content is not to be trusted."""
        for name in table.hashes:
            for suffix in self._suffixes:
                self.pool.forget(name + suffix)
        table.generation = -1

    def free(self, table: BlockTable) -> None:
        """Give all blocks of ``table`` back; what was committed stays in the cache until it is evicted."""
        # A prefix is of use only while all groups have it: they lose their tails together.
        tails_first = range(len(table) - 1, min(table.num_null) - 1, -1)
        self.pool.release([row[i] for i in tails_first for row in table.block_ids if row[i] != NULL_BLOCK])
        table.block_ids, table.num_null = self._no_blocks()
        table.num_committed = 0

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes, those of blocks in use included.

        Requests that hold blocks keep them and go on; what they wrote before and write from now on
        is never found by others. Returns False when there were such requests.
        """
        self.pool.forget_all()
        self._generation += 1
        return self.pool.num_free == self.pool.num_usable

    def _no_blocks(self) -> tuple[GroupBlocks, list[int]]:
        return [[] for _ in self.kinds], [0 for _ in self.kinds]

    def _hash(self, table: BlockTable, tokens: array[int], index: int) -> bytes:
        hashes = table.hashes
        while len(hashes) <= index:
            start = len(hashes) * self.block_size
            parent = hashes[-1] if hashes else table.root
            hashes.append(block_hash(parent, tokens[start : start + self.block_size].tobytes()))
        return hashes[index]
