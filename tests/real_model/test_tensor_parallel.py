"""The real model's 9 query and 3 K/V heads divide over three ranks, and not over two."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from real_model.conftest import GREEDY, assert_same
from real_model.greedy_reference import Answer
from real_model.prompts import PROMPTS

from core_engine import LLM
from core_engine.errors import ConfigError


def test_three_ranks_answer_what_transformers_answers(smollm2: Path, reference: list[Answer]) -> None:
    settings = {"dtype": "float32", "max_model_len": 1024, "kv_cache_bytes": 64 << 20}
    with LLM(str(smollm2), backend="cpu", tensor_parallel_size=3, **settings) as llm:
        outputs = llm.generate(PROMPTS, GREEDY)
        table = "\n".join(llm.engine.started.table.lines())
    assert_same(reference, [output.outputs[0].token_ids for output in outputs])
    assert re.search(r"^weights +171\.\d MiB  100\.0% of the parameters divided over 3 devices$", table, re.M)


def test_two_ranks_are_refused_with_the_sizes_that_work(smollm2: Path) -> None:
    with pytest.raises(ConfigError, match=r"9 query heads and 3 K/V heads .* these sizes do: 1, 3$"):
        LLM(str(smollm2), backend="cpu", tensor_parallel_size=2)
