"""The scheduler, and what the device can do of itself, decide when tokens come and never which."""

from __future__ import annotations

from typing import Any

import pytest
from real_model.conftest import StartEngine
from real_model.prompts import PROMPTS

from core_engine import LLM, SamplingParams

#: Each of these greedily, and twice with a seed; the first two take several steps of 16 tokens.
CHOSEN = [PROMPTS[index] for index in (14, 19, 0, 2, 13) for _ in range(2)]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    if number % 2
    else SamplingParams(temperature=0.9, top_p=0.95, seed=number, n=2, max_tokens=12, ignore_eos=True)
    for number in range(len(CHOSEN))
]
CHUNKS = {"max_num_batched_tokens": 16, "max_num_seqs": 4}
DENSE = {"backend_options": {"attention": "dense"}}
#: Way → backend, settings, the scheduler's class.
WAYS: dict[str, tuple[str, dict[str, Any], str]] = {
    "unified": ("cpu", CHUNKS, "UnifiedScheduler"),
    "simple": ("cpu", {"scheduler": "simple", "max_num_seqs": 4}, "SimpleScheduler"),
    "emulated chunks": ("cpu", CHUNKS | DENSE, "UnifiedScheduler"),
    "emulated chunks in divided steps": ("sim", CHUNKS | DENSE | {"max_model_len": 96}, "UnifiedScheduler"),
}
#: Enough for the simulated accelerator, which is slow.
FEW = 4


@pytest.fixture
def backend(way: str) -> str:
    """The device of the way under test."""
    return WAYS[way][0]


def answers(llm: LLM, num_prompts: int = len(CHOSEN)) -> list[list[int]]:
    outputs = llm.generate(CHOSEN[:num_prompts], PARAMS[:num_prompts])
    return [list(sequence.token_ids) for output in outputs for sequence in output.outputs]


@pytest.fixture(scope="module")
def expected(smollm2: object) -> list[list[int]]:
    """The answers to prompts that are computed alone and whole."""
    settings: dict[str, Any] = {"dtype": "float32", "max_model_len": 1024, "kv_cache_bytes": 256 << 20}
    with LLM(str(smollm2), backend="cpu", max_num_seqs=1, **settings) as llm:
        return answers(llm)


@pytest.mark.parametrize("way", WAYS)
def test_case_32_greedy_and_seeded_answers_are_the_same(
    start: StartEngine, expected: list[list[int]], way: str
) -> None:
    backend, settings, scheduler = WAYS[way]
    llm = start(**settings)
    assert type(llm.engine.core.scheduler).__name__ == scheduler
    found = answers(llm, FEW if backend == "sim" else len(CHOSEN))
    assert found == expected[: len(found)]
