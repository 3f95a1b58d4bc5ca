"""The real model gives the same tokens under either scheduler, chunked or whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core_engine import LLM, SamplingParams

PROMPTS = ["The capital of France is", "Write a haiku about rivers.", "1, 2, 3, 4,"]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=16),
    SamplingParams(temperature=0.8, top_p=0.9, seed=5, max_tokens=16, n=2),
]


def tokens(model: Path, **settings: Any) -> list[list[int]]:
    with LLM(
        str(model), backend="cpu", dtype="float32", max_model_len=256, kv_cache_bytes=100 << 20, **settings
    ) as llm:
        return [
            list(completion.token_ids)
            for params in PARAMS
            for output in llm.generate(PROMPTS, params)
            for completion in output.outputs
        ]


@pytest.mark.real_model
def test_case_32_unified_chunked_and_simple_give_the_same_tokens(smollm2: Path) -> None:
    unified = tokens(smollm2)

    assert tokens(smollm2, max_num_batched_tokens=4, max_num_seqs=4) == unified
    assert tokens(smollm2, scheduler="simple") == unified
