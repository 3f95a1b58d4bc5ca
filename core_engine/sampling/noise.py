"""Noise that depends on (seed, stream, position, token id) alone: Threefry2x32-20 in numpy.

Algorithm: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
A first Threefry turns a row's (seed, stream, position) into two key words, on the host
(`noise_keys`). A second one, keyed by those words, turns each token id into 24 random bits, on the
device, and those into Gumbel noise: `core_engine.sampling.torch_noise`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from core_engine._ragged import IntArray

__all__ = ["PARITY", "ROTATIONS", "noise_keys", "threefry2x32"]

Words = npt.NDArray[np.uint32]

#: Rotation distances of the eight rounds that repeat.
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
#: The third key word is this, xor the two given ones.
PARITY = 0x1BD11BDA


def threefry2x32(key0: Words, key1: Words, counter0: Words, counter1: Words) -> tuple[Words, Words]:
    """Encrypt two counter words under two key words with 20 rounds, element by element.

    All are uint32 arrays of shapes that broadcast.
    """
    keys = (key0, key1, key0 ^ key1 ^ np.uint32(PARITY))
    x0, x1 = counter0 + key0, counter1 + key1
    for group in range(5):
        for distance in ROTATIONS[4 * (group % 2) : 4 * (group % 2) + 4]:
            x0 = x0 + x1
            x1 = (x1 << np.uint32(distance)) | (x1 >> np.uint32(32 - distance))
            x1 = x1 ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + (keys[(group + 2) % 3] + np.uint32(group + 1))
    return x0, x1


def noise_keys(seeds: npt.NDArray[np.uint64], streams: IntArray, positions: IntArray) -> IntArray:
    """Return the key words of each row, int32 ``[R, 2]``.

    ``seeds`` is uint64 ``[R]``; ``streams`` and ``positions`` are int32 ``[R]``, where a position is the
    number of tokens before the one to be sampled.
    """
    low, high = seeds.astype(np.uint32), (seeds >> np.uint64(32)).astype(np.uint32)
    words = threefry2x32(low, high, streams.astype(np.uint32), positions.astype(np.uint32))
    return np.stack(words, axis=1).view(np.int32)
