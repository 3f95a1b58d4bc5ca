"""How arrays lie behind each other in one buffer, so that a step crosses in one copy. Pure numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from core_engine.plugin.runtime import Array

__all__ = [
    "ALIGNMENT",
    "Layout",
    "Place",
    "Signature",
    "plan_layout",
    "read_arrays",
    "signature_of",
    "write_arrays",
]

#: Every array begins at a multiple of this: what CUDA's own allocations promise, so that kernels compiled for
#: aligned pointers serve all of them.
ALIGNMENT = 256

#: The shape and the data type of each array, in order.
Signature = tuple[tuple[tuple[int, ...], np.dtype[np.generic]], ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one array lies: bytes ``[start, stop)``."""

    start: int
    stop: int
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of all arrays of a signature, and the bytes that they take."""

    places: tuple[Place, ...]
    num_bytes: int


def signature_of(arrays: Sequence[Array]) -> Signature:
    """Return what decides the layout of ``arrays``."""
    return tuple((array.shape, array.dtype) for array in arrays)


def plan_layout(signature: Signature) -> Layout:
    """Put the arrays behind each other, each at an aligned offset."""
    places = []
    start = stop = 0
    for shape, dtype in signature:
        start = -(-stop // ALIGNMENT) * ALIGNMENT
        stop = start + prod(shape) * dtype.itemsize
        places.append(Place(start, stop, shape, dtype))
    return Layout(tuple(places), stop)


def write_arrays(layout: Layout, arrays: Sequence[Array], buffer: Array) -> None:
    """Copy ``arrays`` to their places in ``buffer``, uint8 of at least ``layout.num_bytes``."""
    for place, array in zip(layout.places, arrays, strict=True):
        target = buffer[place.start : place.stop].view(place.dtype).reshape(place.shape)
        np.copyto(target, array)


def read_arrays(layout: Layout, buffer: Array) -> tuple[Array, ...]:
    """Return copies of the arrays that lie in ``buffer``."""
    return tuple(
        buffer[place.start : place.stop].view(place.dtype).reshape(place.shape).copy()
        for place in layout.places
    )
