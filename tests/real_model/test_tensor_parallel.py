"""The real model's 9 query and 3 K/V heads divide over three ranks, and not over two."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_model.prompts import PROMPTS

from core_engine import LLM, SamplingParams
from core_engine.errors import ConfigError

#: Ranks talk more than they compute here, so that few tokens take long.
GREEDY = SamplingParams(temperature=0.0, max_tokens=16)


def answers(model: Path, size: int) -> tuple[list[list[int]], str]:
    """Return the tokens, and the row of the start table about weights."""
    settings = {"dtype": "float32", "max_model_len": 512, "kv_cache_bytes": 64 << 20}
    with LLM(str(model), backend="cpu", tensor_parallel_size=size, **settings) as llm:
        outputs = llm.generate(PROMPTS[:4], GREEDY)
        row = llm.engine.started.table.lines()[0]
    return [list(output.outputs[0].token_ids) for output in outputs], row


def test_three_ranks_answer_what_one_answers(smollm2: Path) -> None:
    expected, _ = answers(smollm2, 1)
    tokens, row = answers(smollm2, 3)
    assert tokens == expected
    assert row.startswith("weights ")
    assert row.endswith(" 171.1 MiB  99.9% of the parameters divided over 3 devices")


def test_two_ranks_are_refused_with_the_sizes_that_work(smollm2: Path) -> None:
    with pytest.raises(ConfigError, match=r"9 query heads and 3 K/V heads .* these sizes do: 1, 3$"):
        answers(smollm2, 2)
