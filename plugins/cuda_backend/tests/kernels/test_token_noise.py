"""Noise in Triton has the bits of core's definition and the logarithms of core's CPU kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from core_engine_cuda.kernels.token_noise import gumbel, neg_log, noise_bits
from sampling_case import keys

from core_engine.plugin.runtime import gumbel as torch_gumbel
from core_engine.sampling.noise import threefry2x32

NUM_IDS = 1 << 15


@triton.jit
def noise_of_ids(row_keys, first_id, bits, noise, SIZE: tl.constexpr):
    ids = first_id + tl.arange(0, SIZE)
    key0, key1 = tl.load(row_keys), tl.load(row_keys + 1)
    tl.store(bits + tl.arange(0, SIZE), noise_bits(key0, key1, ids))
    tl.store(noise + tl.arange(0, SIZE), gumbel(key0, key1, ids))


@triton.jit
def logarithms(x, out, SIZE: tl.constexpr):
    tl.store(out + tl.arange(0, SIZE), neg_log(tl.load(x + tl.arange(0, SIZE))))


def run_noise(row_keys: np.ndarray, first_id: int) -> tuple[np.ndarray, torch.Tensor]:
    bits, noise = torch.empty(NUM_IDS, dtype=torch.int32), torch.empty(NUM_IDS)
    noise_of_ids[(1,)](torch.from_numpy(row_keys), first_id, bits, noise, SIZE=NUM_IDS)
    return bits.numpy(), noise


@pytest.mark.parametrize("first_id", [0, 230_000])
@pytest.mark.parametrize("seed", [0, 1, 2**63 + 5])
def test_the_bits_equal_those_of_numpy(first_id: int, seed: int) -> None:
    row_keys = keys(1, seed=seed)
    words, ids = row_keys.view(np.uint32)[0], np.arange(first_id, first_id + NUM_IDS, dtype=np.uint32)
    expected, _ = threefry2x32(words[:1], words[1:], ids, np.zeros_like(ids))

    bits, _ = run_noise(row_keys, first_id)

    np.testing.assert_array_equal(bits, expected >> 8)


def test_the_noise_is_that_of_torch_to_the_last_bits_of_two_logarithms() -> None:
    row_keys = keys(1, seed=3)
    expected = torch_gumbel(torch.from_numpy(row_keys), torch.arange(NUM_IDS, dtype=torch.int32)[None])[0]
    _, noise = run_noise(row_keys, 0)
    torch.testing.assert_close(noise, expected, rtol=2.4e-7, atol=2.4e-7)


def test_logarithms_have_the_bits_of_the_cpu_kernels() -> None:
    pytest.importorskip("numba")
    from numba import vectorize

    from core_engine.backends.cpu.kernels.logarithm import neg_log as cpu_neg_log

    generator = np.random.default_rng(0)
    mantissas = generator.uniform(1, 2, NUM_IDS).astype(np.float32)
    x = mantissas * np.exp2(generator.integers(-126, 100, NUM_IDS)).astype(np.float32)
    x[:3] = [1, 2.0**-24, np.nextafter(np.float32(1), np.float32(0))]
    expected = vectorize(["float32(float32)"])(lambda value: cpu_neg_log(value))(x)
    out = torch.empty(NUM_IDS)
    logarithms[(1,)](torch.from_numpy(x), out, SIZE=NUM_IDS)
    # The CPU's kernels leave the sign of a zero open: that is the logarithm of 1 alone, which no noise takes.
    found, expected = out.numpy() + np.float32(0), expected + np.float32(0)
    np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))
