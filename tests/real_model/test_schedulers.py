"""The scheduler, and whether a device has chunks, decides when tokens come and never which."""

from __future__ import annotations

from typing import Any

import pytest
from real_model.conftest import StartEngine
from real_model.prompts import PROMPTS

from core_engine import LLM, SamplingParams

NUM_TOKENS = 20
#: Short prompts, and two that take several steps of 16 tokens.
CHOSEN = [PROMPTS[0], PROMPTS[14], PROMPTS[2], PROMPTS[19], PROMPTS[13], PROMPTS[7]]
PARAMS = [
    SamplingParams(
        temperature=0.0 if number % 2 else 0.9,
        top_p=0.95,
        seed=number,
        max_tokens=NUM_TOKENS,
        ignore_eos=True,
    )
    for number in range(2 * len(CHOSEN))
]
CHUNKS = {"max_num_batched_tokens": 16, "max_num_seqs": 4}
DENSE = {"backend_options": {"attention": "dense"}}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "unified in chunks": ("cpu", CHUNKS),
    "emulated chunks": ("cpu", CHUNKS | DENSE),
    "emulated chunks, divided steps": ("sim", CHUNKS | DENSE | {"max_model_len": 96}),
}


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """The device of the way under test."""
    way = request.node.callspec.params["way"]
    return WAYS[way][0]


def answers(llm: LLM, *, together: bool) -> list[list[int]]:
    """Every prompt twice, greedy and with a seed."""
    prompts = [prompt for prompt in CHOSEN for _ in range(2)]
    if together:
        outputs = llm.generate(prompts, PARAMS)
    else:
        outputs = [llm.generate(*one)[0] for one in zip(prompts, PARAMS, strict=True)]
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture(scope="module")
def expected(smollm2: object) -> list[list[int]]:
    settings: dict[str, Any] = {"dtype": "float32", "max_model_len": 1024, "kv_cache_bytes": 256 << 20}
    with LLM(str(smollm2), backend="cpu", enable_prefix_caching=False, **settings) as llm:
        return answers(llm, together=False)


@pytest.mark.parametrize("way", WAYS)
def test_greedy_and_seeded_answers_are_those_of_prompts_computed_alone_and_whole(
    start: StartEngine, expected: list[list[int]], way: str
) -> None:
    assert answers(start(**WAYS[way][1]), together=True) == expected
