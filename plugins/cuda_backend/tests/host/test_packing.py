"""Arrays behind each other in one buffer."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from core_engine_cuda.packing import ALIGNMENT, plan_layout, read_arrays, signature_of, write_arrays
from hypothesis import given
from hypothesis import strategies as st

DTYPES = st.sampled_from([np.int32, np.float32, np.bool_, np.int64])
SHAPES = st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple)


@given(st.lists(st.tuples(SHAPES, DTYPES), max_size=8))
def test_arrays_come_back_as_they_were(kinds: list[tuple[tuple[int, ...], type]]) -> None:
    draw = np.random.default_rng(0)
    arrays = [draw.integers(0, 100, shape).astype(dtype) for shape, dtype in kinds]
    layout = plan_layout(signature_of(arrays))
    buffer = np.full(layout.num_bytes, 0xAB, dtype=np.uint8)

    write_arrays(layout, arrays, buffer)

    for array, read in zip(arrays, read_arrays(layout, buffer), strict=True):
        assert read.dtype == array.dtype
        np.testing.assert_array_equal(read, array)


@given(st.lists(st.tuples(SHAPES, DTYPES), max_size=8))
def test_places_are_aligned_and_do_not_overlap(kinds: list[tuple[tuple[int, ...], type]]) -> None:
    places = plan_layout(tuple((shape, np.dtype(dtype)) for shape, dtype in kinds)).places
    assert all(place.start % ALIGNMENT == 0 for place in places)
    assert all(before.stop <= after.start for before, after in pairwise(places))


def test_what_is_read_is_a_copy() -> None:
    arrays = [np.arange(4, dtype=np.int32)]
    layout = plan_layout(signature_of(arrays))
    buffer = np.zeros(layout.num_bytes, dtype=np.uint8)
    (read,) = read_arrays(layout, buffer)
    buffer[:] = 1
    assert not read.any()
