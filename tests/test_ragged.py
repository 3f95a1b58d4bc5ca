"""Rows of integers of different lengths."""

from __future__ import annotations

import numpy as np
import pytest

from core_engine._ragged import Ragged

ROWS = [[1, 2, 3], [], [4], [5, 6]]


def lists(ragged: Ragged) -> list[list[int]]:
    return [ragged.row(row).tolist() for row in range(len(ragged))]


@pytest.mark.parametrize("order", [[], [0], [3, 1, 0], [2, 2], [0, 1, 2, 3]])
def test_rows_are_taken_in_any_order(order: list[int]) -> None:
    taken = Ragged.from_rows(ROWS).take(np.array(order, dtype=np.int32))
    assert lists(taken) == [ROWS[row] for row in order]
    assert taken.values.dtype == taken.offsets.dtype == np.int32


def test_places_name_the_values_of_rows() -> None:
    ragged = Ragged.from_rows(ROWS)
    assert ragged.places(np.array([3, 0], dtype=np.int32)).tolist() == [4, 5, 0, 1, 2]


def test_parts_are_joined_in_order() -> None:
    parts = [Ragged.from_rows(ROWS[:2]), Ragged.from_rows([]), Ragged.from_rows(ROWS[2:])]
    assert lists(Ragged.join(parts)) == ROWS
