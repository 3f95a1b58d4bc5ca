"""Logits and inputs of a sampler, for tests, and the comparison with core's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from core_engine.sampling.base import Sampler
from core_engine.sampling.noise import noise_keys
from core_engine.sampling.reference import ReferenceSampler
from core_engine.worker.shape_policy import SamplingKind

PLAIN = SamplingKind(all_greedy=False)
FILTERED = SamplingKind(all_greedy=False, filters=True)
GREEDY = SamplingKind(all_greedy=True)
KINDS = pytest.mark.parametrize("kind", [GREEDY, PLAIN, FILTERED], ids=["greedy", "plain", "filtered"])

#: What a request may ask for, by the name of the test.
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cool": {"temperature": 0.2},
    "hot": {"temperature": 2.0},
    "top_k 1": {"top_k": 1},
    "top_k 20": {"top_k": 20},
    "top_k of many": {"top_k": 400},
    "top_p": {"top_p": 0.9},
    "small top_p": {"top_p": 1e-30},
    "large top_p": {"top_p": 0.9999},
    "min_p": {"min_p": 0.05},
    "min_p 1": {"min_p": 1.0},
    "all filters": {"min_p": 0.001, "top_k": 60, "top_p": 0.8, "temperature": 0.7},
    "min_p and top_p": {"min_p": 0.01, "top_p": 0.7},
    "top_k of many and top_p": {"top_k": 300, "top_p": 0.97},
}


def kind_of(options: dict[str, Any]) -> SamplingKind:
    """Return the kind of a step whose requests have ``options``."""
    return FILTERED if options.keys() - {"temperature"} else PLAIN


def random_logits(shape: str, num_rows: int, vocab_size: int) -> torch.Tensor:
    """Return rows that are flat, peaked like a model's, full of equal values (ties), or of both zeros."""
    logits = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(vocab_size))
    if shape == "zeros":
        return torch.where(logits > 0, 0.0, -0.0)
    if shape == "peaked":
        logits[:, ::97] += 12
    return (logits * 2).round() if shape == "ties" else logits * 3


def logits_without_choice(vocab_size: int) -> tuple[torch.Tensor, list[int]]:
    """Return eight rows and the numbers of those that hold a NaN, +inf, or nothing above -inf."""
    logits = random_logits("flat", 8, vocab_size)
    logits[1] = torch.nan
    logits[2, -1] = torch.nan
    logits[3] = -torch.inf
    logits[4, 300] = -torch.nan
    logits[5, 0] = torch.inf
    logits[6] = -torch.inf
    logits[6, 4] = torch.nan
    return logits, [1, 2, 3, 4, 5, 6]


def assert_as_reference(sampler: Sampler, logits: torch.Tensor, kind: SamplingKind, **columns: Any) -> None:
    """Fail unless ``sampler`` takes the reference's tokens; ``columns`` are those of `sampler_inputs`."""
    inputs = sampler_inputs(*logits.shape, **columns)
    got = sampler.sample(logits, inputs, kind)
    assert got.dtype == torch.int32
    assert got.tolist() == ReferenceSampler().sample(logits, inputs, kind).tolist()


def penalties_and_bias(vocab_size: int) -> dict[str, Any]:
    """Return columns with every kind of penalty and a bias."""
    generator = np.random.default_rng(1)
    return {
        "bias": generator.normal(size=vocab_size),
        "penalties": [1.3, 0.5, 0.2],
        "output_counts": generator.integers(0, 3, size=vocab_size),
        "prompt_mask": generator.integers(0, 2, size=vocab_size),
    }


def keys(num_rows: int, seed: int = 1, stream: int = 0, first_position: int = 0) -> np.ndarray:
    """Return the noise keys of ``num_rows`` successive positions of one request."""
    positions = np.arange(first_position, first_position + num_rows, dtype=np.int32)
    seeds = np.full(num_rows, seed, dtype=np.uint64)
    return noise_keys(seeds, np.full(num_rows, stream, dtype=np.int32), positions)


def sampler_inputs(num_rows: int, vocab_size: int, **columns: Any) -> dict[str, torch.Tensor]:
    """Return the arrays of `HostSampling` as tensors; ``columns`` are broadcast over the neutral ones.

    What is not named changes nothing: temperature 1, no filter, penalty or bias.
    """
    neutral: dict[str, np.ndarray] = {
        "temperature": np.ones(num_rows, dtype=np.float32),
        "top_k": np.full(num_rows, vocab_size, dtype=np.int32),
        "top_p": np.ones(num_rows, dtype=np.float32),
        "min_p": np.zeros(num_rows, dtype=np.float32),
        "noise_keys": keys(num_rows),
        "penalties": np.tile(np.array([1, 0, 0], dtype=np.float32), (num_rows, 1)),
        "prompt_mask": np.zeros((num_rows, vocab_size), dtype=np.bool_),
        "output_counts": np.zeros((num_rows, vocab_size), dtype=np.int32),
        "bias": np.zeros((num_rows, vocab_size), dtype=np.float32),
    }
    for name, value in columns.items():
        neutral[name][:] = value
    return {name: torch.from_numpy(array) for name, array in neutral.items()}
