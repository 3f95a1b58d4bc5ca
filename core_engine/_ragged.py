"""Rows of integers of different lengths as two flat arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of int32: row ``i`` is ``values[offsets[i]:offsets[i + 1]]``.

    ``values`` has shape ``[offsets[-1]]`` and ``offsets`` ``[num_rows + 1]``, both int32.
    """

    values: IntArray
    offsets: IntArray

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[int]]) -> Ragged:
        """Pack ``rows`` (any sequences of ints)."""
        listed = list(rows)
        offsets = np.zeros(len(listed) + 1, dtype=np.int32)
        np.cumsum([len(row) for row in listed], out=offsets[1:])
        values = np.fromiter((v for row in listed for v in row), dtype=np.int32, count=int(offsets[-1]))
        return cls(values, offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, index: int) -> IntArray:
        """Return row ``index`` as a view."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def places(self, rows: IntArray) -> IntArray:
        """Return where the values of ``rows`` stand in ``values``, row after row."""
        starts, lengths = self.offsets[:-1][rows], np.diff(self.offsets)[rows]
        ends = np.cumsum(lengths, dtype=np.int32)
        return np.repeat(starts - (ends - lengths), lengths) + np.arange(lengths.sum(), dtype=np.int32)

    def take(self, rows: IntArray) -> Ragged:
        """Return ``rows`` as rows of their own, in the order given."""
        offsets = np.zeros(len(rows) + 1, dtype=np.int32)
        np.cumsum(np.diff(self.offsets)[rows], out=offsets[1:])
        return Ragged(self.values[self.places(rows)], offsets)

    @classmethod
    def join(cls, parts: Sequence[Ragged]) -> Ragged:
        """Return the rows of all ``parts`` (at least one), one after the other."""
        lengths = np.concatenate([np.diff(part.offsets) for part in parts])
        offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
        np.cumsum(lengths, out=offsets[1:])
        return cls(np.concatenate([part.values for part in parts]), offsets)
