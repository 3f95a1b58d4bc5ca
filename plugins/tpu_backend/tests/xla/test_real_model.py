"""SmolLM2 on PJRT CPU: the CPU backend's own tokens, and no graph while serving (cases 1, 4 and 5)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from request_mix import tokens, tokens_of
from xla_engine import graph_counts, make_engine

from core_engine import LLM, SamplingParams

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(1500)]

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    # Longer than a step.
    "In 1969 the first humans landed on the Moon. They travelled in a spacecraft called Apollo 11. "
    "The commander was Neil Armstrong. The second person to walk on the Moon was",
]
SETTINGS = {"max_model_len": 128, "kv_cache_bytes": 64 << 20}


@pytest.fixture(scope="module")
def smollm2_tpu(smollm2: Path) -> Iterator[LLM]:
    with make_engine(
        smollm2, backend_options={"token_buckets": "32", "request_buckets": "4"}, **SETTINGS
    ) as llm:
        yield llm


@pytest.fixture(scope="module")
def smollm2_cpu(smollm2: Path) -> Iterator[LLM]:
    with make_engine(smollm2, "cpu", **SETTINGS) as llm:
        yield llm


def test_the_capital_of_france(smollm2_tpu: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=3)
    (output,) = smollm2_tpu.generate(["The capital of France is"], params)
    assert output.outputs[0].text.startswith(" Paris")


def test_case_04_greedy_tokens_equal_the_cpu_backends_over_64_tokens(
    smollm2_tpu: LLM, smollm2_cpu: LLM
) -> None:
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    expected = tokens_of(smollm2_cpu.generate(PROMPTS, params))
    assert tokens_of(smollm2_tpu.generate(PROMPTS, params)) == expected


def test_case_05_a_warm_prefix_cache_and_other_neighbours_change_nothing(
    smollm2_tpu: LLM, smollm2_cpu: LLM
) -> None:
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    expected = tokens_of(smollm2_cpu.generate(PROMPTS, params))
    outputs = [smollm2_tpu.generate([prompt], params)[0] for prompt in PROMPTS]
    assert tokens_of(outputs) == expected
    again = smollm2_tpu.generate(PROMPTS[::-1], params)[::-1]
    assert again[3].num_cached_tokens > 0
    assert tokens_of(again) == expected


def test_case_10_seeded_tokens_equal_the_cpu_backends(smollm2_tpu: LLM, smollm2_cpu: LLM) -> None:
    params = [
        SamplingParams(temperature=0.9, top_p=0.95, top_k=40, seed=seed, max_tokens=16, ignore_eos=True)
        for seed in range(len(PROMPTS))
    ]
    expected = tokens_of(smollm2_cpu.generate(PROMPTS, params))
    assert tokens_of(smollm2_tpu.generate(PROMPTS, params)) == expected


def test_case_01_two_hundred_random_requests_compile_nothing(smollm2_tpu: LLM) -> None:
    draw = random.Random(1)
    prompts = [[draw.randrange(49152) for _ in range(draw.randint(1, 40))] for _ in range(200)]
    params = [
        SamplingParams(
            temperature=draw.choice([0.0, 0.8]),
            logprobs=draw.choice([None, 5]),
            seed=number,
            max_tokens=draw.randint(1, 4),
            ignore_eos=True,
        )
        for number in range(200)
    ]
    before = graph_counts(smollm2_tpu)
    answers = tokens(smollm2_tpu, prompts, params)
    assert [len(answer) for answer in answers] == [param.max_tokens for param in params]
    assert graph_counts(smollm2_tpu) == before
