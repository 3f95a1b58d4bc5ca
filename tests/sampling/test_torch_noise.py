from __future__ import annotations

import numpy as np
import torch
from sampling_case import keys

from core_engine.sampling.noise import threefry2x32
from core_engine.sampling.torch_noise import gumbel, noise_bits

IDS = torch.arange(50_000, dtype=torch.int32)[None]


def test_the_bits_equal_those_of_numpy() -> None:
    row_keys = keys(3, seed=2**63 + 5)
    words, ids = row_keys.view(np.uint32), IDS.numpy().astype(np.uint32)
    expected, _ = threefry2x32(words[:, :1], words[:, 1:], ids, np.zeros_like(ids))
    bits = noise_bits(torch.from_numpy(row_keys), IDS)
    assert bits.dtype == torch.int32
    np.testing.assert_array_equal(bits.numpy(), expected >> 8)


def test_noise_is_gumbel_distributed() -> None:
    noise = gumbel(torch.from_numpy(keys(20)), IDS).flatten().double()
    # Mean and variance of Gumbel(0, 1): Euler's constant and π² / 6.
    assert abs(noise.mean().item() - 0.5772) < 0.005
    assert abs(noise.var().item() - 1.6449) < 0.02


def test_a_tokens_noise_depends_on_its_id_not_on_its_place() -> None:
    row_keys, order = (
        torch.from_numpy(keys(2)),
        torch.randperm(1000, generator=torch.Generator().manual_seed(0)),
    )
    ids = torch.arange(1000, dtype=torch.int32)[None]
    shuffled = gumbel(row_keys, ids[:, order])
    torch.testing.assert_close(shuffled, gumbel(row_keys, ids)[:, order], rtol=0, atol=0)


def test_the_noise_traces_without_a_graph_break() -> None:
    exported = torch.export.export(_Noise(), (torch.from_numpy(keys(2)), IDS[:, :64]))
    result = exported.module()(torch.from_numpy(keys(2)), IDS[:, :64])
    torch.testing.assert_close(result, gumbel(torch.from_numpy(keys(2)), IDS[:, :64]), rtol=0, atol=0)


class _Noise(torch.nn.Module):
    def forward(self, row_keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return gumbel(row_keys, ids)
