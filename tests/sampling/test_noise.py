from __future__ import annotations

import numpy as np
import pytest

from core_engine.sampling.noise import noise_keys, threefry2x32


def word(value: int) -> np.ndarray:
    return np.array([value], dtype=np.uint32)


# The known answers that are published with the algorithm (Random123, kat_vectors).
@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_published_answers(
    key: tuple[int, int], counter: tuple[int, int], expected: tuple[int, int]
) -> None:
    x0, x1 = threefry2x32(word(key[0]), word(key[1]), word(counter[0]), word(counter[1]))
    assert (int(x0[0]), int(x1[0])) == expected


def one_key(seed: int, stream: int, position: int) -> tuple[int, int]:
    keys = noise_keys(
        np.array([seed], dtype=np.uint64),
        np.array([stream], dtype=np.int32),
        np.array([position], dtype=np.int32),
    )
    return int(keys[0, 0]), int(keys[0, 1])


def test_a_rows_key_is_the_cipher_of_stream_and_position_under_the_seed() -> None:
    x0, x1 = threefry2x32(word(0x13198A2E), word(0x03707344), word(4), word(9))
    assert one_key(0x03707344_13198A2E, 4, 9) == (int(x0.view(np.int32)[0]), int(x1.view(np.int32)[0]))


def test_every_part_of_the_address_matters() -> None:
    addresses = [(1, 0, 0), (2, 0, 0), (1 << 32, 0, 0), (1, 1, 0), (1, 0, 1), (2**64 - 1, 3, 2)]
    assert len({one_key(*address) for address in addresses}) == len(addresses)


def test_a_rows_key_does_not_depend_on_its_neighbours() -> None:
    seeds = np.arange(5, dtype=np.uint64)
    streams, positions = np.arange(5, dtype=np.int32), np.arange(10, 15, dtype=np.int32)
    together = noise_keys(seeds, streams, positions)
    assert together.shape == (5, 2)
    assert together.dtype == np.int32
    assert [tuple(row) for row in together.tolist()] == [one_key(i, i, 10 + i) for i in range(5)]
