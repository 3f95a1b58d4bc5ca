"""Inputs of a sampler, for tests: one row per draw, everything neutral that is not named."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from core_engine.sampling.noise import noise_keys
from core_engine.worker.shape_policy import SamplingKind

PLAIN = SamplingKind(all_greedy=False)
FILTERED = SamplingKind(all_greedy=False, filters=True)
GREEDY = SamplingKind(all_greedy=True)


def keys(num_rows: int, seed: int = 1, stream: int = 0, first_position: int = 0) -> np.ndarray:
    """Return the noise keys of ``num_rows`` successive positions of one request."""
    positions = np.arange(first_position, first_position + num_rows, dtype=np.int32)
    seeds = np.full(num_rows, seed, dtype=np.uint64)
    return noise_keys(seeds, np.full(num_rows, stream, dtype=np.int32), positions)


def sampler_inputs(num_rows: int, vocab_size: int, **columns: Any) -> dict[str, torch.Tensor]:
    """Return the arrays of `HostSampling` as tensors; ``columns`` are broadcast over the neutral ones."""
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
