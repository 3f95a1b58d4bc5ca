"""Engines whose model is divided over two processes answer what one process answers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from mixed_requests import PARAMS, PROMPTS, all_logprobs, engine, tokens
from tiny_chat_model import make_tiny_chat_model

from core_engine import RequestOutput

#: Bytes of a block: 4 layers, 16 tokens, and of a rank one K/V head of 16 numbers, in float32.
BLOCK_BYTES = 4 * 16 * (16 + 16) * 4
#: Room for two requests where four run: some are preempted.
TIGHT = {"num_draft_tokens": 2, "kv_cache_bytes": 9 * BLOCK_BYTES}


def alone(model: Path) -> list[RequestOutput]:
    with engine(model, "reference") as llm:
        return llm.generate(PROMPTS, PARAMS)


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("llama", TIGHT),
        ("qwen2", {"max_num_batched_tokens": 24}),
        ("qwen3", {"num_draft_tokens": 2}),
        ("gemma2", {}),
        ("mixtral", {"scheduler": "simple"}),
    ],
)
def test_two_ranks_draw_the_tokens_of_one(model_type: str, settings: dict[str, Any], tmp_path: Path) -> None:
    model = make_tiny_chat_model(tmp_path, model_type)
    expected = alone(model)
    with engine(model, "reference", tensor_parallel_size=2, **settings) as llm:
        outputs = llm.generate(PROMPTS, PARAMS)
        again = llm.generate(PROMPTS, PARAMS)
        table = llm.engine.started.table
    assert tokens(outputs) == tokens(again) == tokens(expected)
    assert all_logprobs(outputs) == pytest.approx(all_logprobs(expected), abs=1e-4)
    if "scheduler" not in settings:
        assert sum(output.num_cached_tokens for output in again) > 0
    if settings is TIGHT:
        assert table.num_kv_tokens == 8 * 16
    # Plans of transformers of the lowest supported version leave the table of embeddings whole.
    weights = table.lines()[0]
    assert re.search(r"^weights .* MiB  [89]\d\.\d% of the parameters divided over 2 devices$", weights)
