"""The device's noise is the definition's, bit by bit (case 10)."""

from __future__ import annotations

import numpy as np
import torch
from core_engine_tpu.runtime import XlaRuntime
from sampling_case import keys

from core_engine.sampling.noise import threefry2x32
from core_engine.sampling.torch_noise import gumbel, noise_bits

IDS = torch.arange(50_000, dtype=torch.int32)[None]
KEYS = keys(4, seed=2**63 + 5)


def test_case_10_the_bits_equal_those_of_numpy(runtime: XlaRuntime) -> None:
    words, ids = KEYS.view(np.uint32), IDS.numpy().astype(np.uint32)
    expected, _ = threefry2x32(words[:, :1], words[:, 1:], ids, np.zeros_like(ids))
    with torch.no_grad():
        bits = runtime.compile(noise_bits)(runtime.upload(torch.from_numpy(KEYS)), runtime.upload(IDS))
    np.testing.assert_array_equal(bits.cpu().numpy(), expected >> 8)


def test_the_noise_differs_from_torchs_in_the_logarithm_only(runtime: XlaRuntime) -> None:
    with torch.no_grad():
        ours = runtime.compile(gumbel)(runtime.upload(torch.from_numpy(KEYS)), runtime.upload(IDS))
    torch.testing.assert_close(ours.cpu(), gumbel(torch.from_numpy(KEYS), IDS), rtol=1e-5, atol=1e-5)
