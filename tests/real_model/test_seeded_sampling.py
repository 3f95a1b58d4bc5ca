"""A seed fixes the tokens, whatever else runs and however the work is divided."""

from __future__ import annotations

import pytest
from real_model.conftest import StartEngine
from real_model.prompts import PROMPTS

from core_engine import LLM, SamplingParams

PARAMS = [
    SamplingParams(
        temperature=0.8 + 0.02 * number,
        top_p=0.95 if number % 2 else 1.0,
        top_k=50 if number % 3 == 0 else 0,
        min_p=0.02 if number % 5 == 0 else 0.0,
        repetition_penalty=1.1 if number % 4 == 0 else 1.0,
        seed=1000 + number,
        max_tokens=24,
    )
    for number in range(len(PROMPTS))
]


def _alone(llm: LLM) -> list[list[int]]:
    return [
        llm.generate(prompt, params)[0].outputs[0].token_ids
        for prompt, params in zip(PROMPTS, PARAMS, strict=True)
    ]


def _together(llm: LLM) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, PARAMS)]


@pytest.fixture(scope="module")
def expected(smollm2: object) -> list[list[int]]:
    with LLM(
        str(smollm2), backend="cpu", dtype="float32", max_model_len=1024, kv_cache_bytes=256 << 20
    ) as llm:
        return _alone(llm)


def test_in_one_batch(start: StartEngine, expected: list[list[int]]) -> None:
    assert _together(start()) == expected


def test_in_reverse_order(start: StartEngine, expected: list[list[int]]) -> None:
    outputs = start().generate(PROMPTS[::-1], PARAMS[::-1])
    assert [output.outputs[0].token_ids for output in outputs][::-1] == expected


def test_in_chunks(start: StartEngine, expected: list[list[int]]) -> None:
    assert _together(start(max_num_batched_tokens=16, max_num_seqs=16)) == expected


def test_preempted(start: StartEngine, expected: list[list[int]]) -> None:
    bytes_per_block = 30 * 2 * 16 * 3 * 64 * 4
    llm = start(max_num_seqs=16, max_model_len=160, kv_cache_bytes=20 * bytes_per_block)
    assert _together(llm) == expected
    assert llm.engine.core.scheduler.stats().num_preemptions > 0


def test_several_sequences_of_one_prompt_differ_and_repeat(start: StartEngine) -> None:
    llm = start()
    params = SamplingParams(n=4, seed=3, max_tokens=16)
    first = [sequence.token_ids for sequence in llm.generate(PROMPTS[0], params)[0].outputs]
    again = [sequence.token_ids for sequence in llm.generate(PROMPTS[0], params)[0].outputs]
    assert first == again
    assert len({tuple(token_ids) for token_ids in first}) == 4
