from __future__ import annotations

import numpy as np

from core_engine._ragged import Ragged
from core_engine.worker.block_tables import BlockTable


def _rows(*rows: int) -> np.ndarray:
    return np.array(rows, dtype=np.int32)


def test_blocks_are_appended_behind_those_of_earlier_steps() -> None:
    table = BlockTable(max_num_seqs=4, max_blocks_per_request=5, block_size=16)
    table.append(_rows(2, 0), Ragged.from_rows([[7, 8], [3]]))
    table.append(_rows(0, 2), Ragged.from_rows([[], [9]]))
    table.append(_rows(0, 2), Ragged.from_rows([[4, 5], []]))
    assert table.table[2].tolist() == [7, 8, 9, 0, 0]
    assert table.table[0].tolist() == [3, 4, 5, 0, 0]
    assert table.num_blocks.tolist() == [3, 0, 3, 0]


def test_a_cleared_row_points_to_the_null_block_and_starts_anew() -> None:
    table = BlockTable(max_num_seqs=2, max_blocks_per_request=3, block_size=16)
    table.append(_rows(1), Ragged.from_rows([[7, 8, 9]]))
    table.clear(1)
    assert table.table[1].tolist() == [0, 0, 0]
    table.append(_rows(1), Ragged.from_rows([[4]]))
    assert table.table[1].tolist() == [4, 0, 0]


def test_a_slot_is_the_block_and_the_offset_in_it() -> None:
    table = BlockTable(max_num_seqs=2, max_blocks_per_request=3, block_size=4)
    table.append(_rows(0, 1), Ragged.from_rows([[5, 2], [9]]))
    slots = table.slots(_rows(0, 0, 0, 1), _rows(3, 4, 6, 1))
    assert slots.tolist() == [5 * 4 + 3, 2 * 4 + 0, 2 * 4 + 2, 9 * 4 + 1]
