"""The sampler without a sort, as XLA runs it, chooses what core's reference chooses."""

from __future__ import annotations

import pytest
import torch
from core_engine_tpu.runtime import XlaRuntime
from core_engine_tpu.sampler import SortFreeSampler
from sampling_case import keys

from core_engine.plugin.runtime import ReferenceSampler, SamplingKind

FILTERED = SamplingKind(all_greedy=False, filters=True)
NUM_ROWS, VOCAB_SIZE = 8, 500


def logits() -> torch.Tensor:
    rows = (torch.randn(NUM_ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) * 3).round(
        decimals=1
    )
    rows[1] = float("-inf")
    rows[2, 7] = float("nan")
    rows[3, 1:] = float("-inf")
    rows[4] = 0.0
    return rows


@pytest.mark.parametrize("top_p", [1e-40, 1e-30, 0.3, 0.999, 1.0])
@pytest.mark.parametrize("top_k", [1, 20, VOCAB_SIZE, 2**31 - 1])
@pytest.mark.parametrize("min_p", [0.0, 0.2])
def test_choices_on_xla(runtime: XlaRuntime, top_p: float, top_k: int, min_p: float) -> None:
    inputs = {
        "temperature": torch.tensor([0.0, 1.0] * (NUM_ROWS // 2)),
        "top_k": torch.full((NUM_ROWS,), top_k, dtype=torch.int32),
        "top_p": torch.full((NUM_ROWS,), top_p),
        "min_p": torch.full((NUM_ROWS,), min_p),
        "noise_keys": torch.from_numpy(keys(NUM_ROWS, seed=1)),
    }
    expected = ReferenceSampler().choose(logits(), inputs, FILTERED)
    choose = runtime.compile(SortFreeSampler().choose)
    uploaded = {name: runtime.upload(tensor) for name, tensor in inputs.items()}
    with torch.no_grad():
        found = choose(runtime.upload(logits()), uploaded, FILTERED)
    assert found.cpu().tolist() == expected.tolist()
