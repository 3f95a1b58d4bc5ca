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
