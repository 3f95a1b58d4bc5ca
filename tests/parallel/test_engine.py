"""Engines whose model is divided over two processes answer what one process answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mixed_requests import PARAMS, PROMPTS, all_logprobs, engine, tokens
from tiny_chat_model import make_tiny_chat_model

from core_engine import LLM, RequestOutput


@contextmanager
def divided(model: Path, **settings: Any) -> Iterator[LLM]:
    with engine(model, "reference", tensor_parallel_size=2, **settings) as llm:
        yield llm


def alone(model: Path, **settings: Any) -> list[RequestOutput]:
    with engine(model, "reference", **settings) as llm:
        return llm.generate(PROMPTS, PARAMS)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "gemma2", "mixtral"])
def test_two_ranks_draw_the_tokens_of_one(model_type: str, tmp_path: Path) -> None:
    model = make_tiny_chat_model(tmp_path, model_type)
    expected = alone(model)
    with divided(model) as llm:
        together = llm.generate(PROMPTS, PARAMS)
        again = llm.generate(PROMPTS, PARAMS)
        table = "\n".join(llm.engine.started.table.lines())
    assert tokens(together) == tokens(again) == tokens(expected)
    assert all_logprobs(together) == pytest.approx(all_logprobs(expected), abs=1e-4)
    assert sum(output.num_cached_tokens for output in again) > 0
    assert "of the parameters divided over 2 devices" in table


def test_drafts_and_preemption_change_nothing(tmp_path: Path) -> None:
    model = make_tiny_chat_model(tmp_path)
    expected = alone(model)
    page = 4 * 16 * (16 + 16) * 4  # of one block: 4 layers, 16 tokens, one K/V head of 16 numbers
    settings = {"num_draft_tokens": 2, "kv_cache_bytes": 9 * page, "max_num_batched_tokens": 24}
    with divided(model, **settings) as llm:
        outputs = llm.generate(PROMPTS, PARAMS)
        assert llm.engine.started.table.num_kv_tokens == 8 * 16
    assert tokens(outputs) == tokens(expected)
