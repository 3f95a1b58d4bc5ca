"""Closing an engine gives its memory back, also to the system."""

from __future__ import annotations

import gc
from pathlib import Path

import torch

from core_engine import LLM, SamplingParams


def _tensor_bytes() -> int:
    gc.collect()
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in gc.get_objects()
        if type(tensor) in (torch.Tensor, torch.nn.Parameter)
    }
    return sum(storages.values())


def test_no_tensor_of_the_model_or_its_cache_outlives_close(smollm2: Path) -> None:
    before = _tensor_bytes()
    with LLM(str(smollm2), backend="cpu", max_num_batched_tokens=256, kv_cache_bytes=64 << 20) as llm:
        llm.generate("hello", SamplingParams(max_tokens=2))
        assert _tensor_bytes() - before > 250 << 20
    assert _tensor_bytes() - before < 1 << 20
