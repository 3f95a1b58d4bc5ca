"""The whole engine on the simulated accelerator: the same tokens as on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from draft_oracle import draft_all_right, draft_all_wrong, draft_at_random
from engine.draft_answers import answers, drafted_answers
from tiny_chat_model import make_tiny_chat_model

from core_engine import LLM, SamplingParams
from core_engine.errors import DoesNotFit, OutOfDeviceMemory

PROMPTS = [[7, 3, 100, 42], list(range(20, 57)), [5] * 18, [150, 2], list(range(100, 190))]
PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True),
    "seeded": SamplingParams(temperature=0.9, top_p=0.95, seed=3, max_tokens=16, ignore_eos=True),
    "penalties": SamplingParams(
        temperature=0.7, repetition_penalty=1.2, logit_bias={4: 2.0}, seed=4, max_tokens=16, ignore_eos=True
    ),
}
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 128,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 32,
    "kv_cache_bytes": 8 << 20,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_chat_model(tmp_path_factory.mktemp("llama")))


@pytest.fixture
def sim(model: str, sim_installed: None) -> Iterator[LLM]:
    with LLM(model, backend="sim", **SETTINGS) as llm:
        yield llm


def tokens(llm: LLM, params: SamplingParams, prompts: list[list[int]] = PROMPTS) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params)]


def test_tokens_are_those_of_the_cpu_backend(model: str, sim: LLM) -> None:
    with LLM(model, backend="cpu", **SETTINGS) as cpu:
        for params in PARAMS.values():
            assert tokens(sim, params) == tokens(cpu, params)


def test_tokens_are_the_same_under_the_simple_scheduler(model: str, sim: LLM) -> None:
    with LLM(model, backend="sim", scheduler="simple", **SETTINGS) as simple:
        # A step must hold the longest sequence, and padded steps are powers of two.
        assert simple.engine.config.max_num_batched_tokens == 128
        for params in PARAMS.values():
            assert tokens(simple, params) == tokens(sim, params)


def test_under_the_simple_scheduler_the_largest_program_is_the_longest_sequence(
    model: str, sim_installed: None
) -> None:
    settings = SETTINGS | {"max_model_len": None}
    options = {"max_padded_tokens": "64"}
    with LLM(model, backend="sim", scheduler="simple", backend_options=options, **settings) as sim:
        assert sim.engine.config.max_model_len == 64
        assert len(tokens(sim, PARAMS["greedy"], PROMPTS[:4])) == 4


def test_a_worker_in_its_own_process_gives_the_same_tokens(model: str, sim: LLM) -> None:
    with LLM(model, backend="sim", executor="process", **SETTINGS) as other:
        assert tokens(other, PARAMS["seeded"]) == tokens(sim, PARAMS["seeded"])


def test_a_small_pool_changes_nothing(model: str, sim: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    roomy = tokens(sim, params, PROMPTS[:4])
    # 9 blocks of 16 tokens beside the null block, and the four need 20 in the end.
    block_bytes = SETTINGS["kv_cache_bytes"] // (sim.engine.core.scheduler.stats().num_total_blocks + 1)
    with LLM(model, backend="sim", **SETTINGS | {"kv_cache_bytes": 10 * block_bytes}) as tight:
        assert tokens(tight, params, PROMPTS[:4]) == roomy
        assert tight.engine.core.scheduler.stats().num_preemptions > 0


def test_drafts_change_no_token_and_compile_nothing(model: str, sim_installed: None) -> None:
    # Strict shapes: whatever warm-up did not prepare is an error.
    settings = SETTINGS | {"max_num_seqs": 16}
    with LLM(model, backend="cpu", **settings) as cpu:
        expected = answers(cpu)
    with LLM(model, backend="sim", num_draft_tokens=5, **settings) as sim:
        for plan in (draft_all_right, draft_all_wrong, draft_at_random(1)):
            assert drafted_answers(sim, expected, plan) == expected
        assert sim.engine.core.scheduler.stats().num_accepted_tokens > 0


def test_logprobs_are_reported_as_asked(sim: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=2, prompt_logprobs=1, ignore_eos=True)
    (output,) = sim.generate([PROMPTS[1]], params)
    assert output.outputs[0].logprobs is not None
    assert len(output.outputs[0].logprobs) == 4


def test_a_device_too_small_for_the_model_is_an_error_and_leaves_nothing(
    model: str, sim_installed: None
) -> None:
    with pytest.raises(OutOfDeviceMemory):
        LLM(model, backend="sim", backend_options={"memory_bytes": "100000"}, **SETTINGS)


def test_a_device_too_small_for_the_cache_says_which_length_fits(model: str, sim_installed: None) -> None:
    settings = SETTINGS | {"kv_cache_bytes": 65536}
    with pytest.raises(DoesNotFit, match="max_model_len"):
        LLM(model, backend="sim", **settings)
