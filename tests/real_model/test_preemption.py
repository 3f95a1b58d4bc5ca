"""A pool too small for its requests changes when tokens come, never which."""

from __future__ import annotations

import random

import pytest
from real_model.conftest import StartEngine

from core_engine import LLM, SamplingParams


@pytest.fixture
def backend() -> str:
    return "cpu"


def _requests() -> tuple[list[list[int]], list[SamplingParams]]:
    draw = random.Random(7)
    prompts = [[draw.randrange(3, 49152) for _ in range(draw.randint(1, 60))] for _ in range(200)]
    params = [
        SamplingParams(
            temperature=draw.choice([0.0, 0.7, 1.0]),
            top_k=draw.choice([0, 20]),
            seed=number,
            max_tokens=draw.randint(1, 24),
            ignore_eos=True,
        )
        for number in range(len(prompts))
    ]
    return prompts, params


def _tokens(llm: LLM) -> list[list[int]]:
    prompts, params = _requests()
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]


def test_two_hundred_requests_in_a_small_pool_equal_the_roomy_run(start: StartEngine) -> None:
    roomy = _tokens(start(max_num_seqs=16))
    # 24 blocks of 16 tokens for 16 requests of up to 84.
    bytes_per_block = 30 * 2 * 16 * 3 * 64 * 4
    tight = start(max_num_seqs=16, max_model_len=128, kv_cache_bytes=25 * bytes_per_block)
    tokens = _tokens(tight)
    stats = tight.engine.core.scheduler.stats()
    assert stats.num_preemptions > 0
    assert stats.num_free_blocks == stats.num_total_blocks
    assert tokens == roomy
