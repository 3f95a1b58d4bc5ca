"""The runner's block tables: one persistent array per KV-cache group."""

from __future__ import annotations

import numpy as np

from core_engine._ragged import IntArray, Ragged

__all__ = ["BlockTable"]


class BlockTable:
    """Block ids by request row: int32 ``[max_num_seqs, max_blocks_per_request]``, unused entries 0."""

    def __init__(self, max_num_seqs: int, max_blocks_per_request: int, block_size: int) -> None:
        self.block_size = block_size
        self.table: IntArray = np.zeros((max_num_seqs, max_blocks_per_request), dtype=np.int32)
        self.num_blocks: IntArray = np.zeros(max_num_seqs, dtype=np.int32)

    def clear(self, row: int) -> None:
        """Forget the blocks of ``row``."""
        self.table[row, : self.num_blocks[row]] = 0
        self.num_blocks[row] = 0

    def append(self, rows: IntArray, new_blocks: Ragged) -> None:
        """Append row ``i`` of ``new_blocks`` to table row ``rows[i]``."""
        if not len(new_blocks.values):
            return
        counts = np.diff(new_blocks.offsets)
        targets = np.repeat(rows, counts)
        within = np.arange(len(targets), dtype=np.int32) - np.repeat(new_blocks.offsets[:-1], counts)
        self.table[targets, self.num_blocks[targets] + within] = new_blocks.values
        self.num_blocks[rows] += counts

    def slots(self, token_rows: IntArray, positions: IntArray) -> IntArray:
        """Return each token's slot, ``block * block_size + offset``; both arguments are ``[T]``."""
        blocks = self.table[token_rows, positions // self.block_size]
        return blocks * np.int32(self.block_size) + positions % self.block_size
