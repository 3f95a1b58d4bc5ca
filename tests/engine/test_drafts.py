"""The same tokens with and without drafts, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from draft_oracle import Plan, draft_all_right, draft_all_wrong, draft_at_random
from engine.draft_answers import PARAMS, PROMPTS, Answers, answers, drafted_answers

from core_engine import LLM, SamplingParams
from core_engine.errors import ConfigError

SETTINGS: dict[str, Any] = {
    "backend": "cpu",
    "dtype": "float32",
    "max_model_len": 128,
    "max_num_seqs": 16,
    "kv_cache_bytes": 8 << 20,
}


@pytest.fixture(scope="module")
def expected(tiny_model: Path) -> Answers:
    with LLM(str(tiny_model), **SETTINGS) as llm:
        return answers(llm)


@pytest.fixture
def drafting(tiny_model: Path) -> Iterator[LLM]:
    with LLM(str(tiny_model), num_draft_tokens=5, **SETTINGS) as llm:
        yield llm


@pytest.mark.parametrize("plan", [draft_all_right, draft_all_wrong, draft_at_random(1), draft_at_random(2)])
@pytest.mark.parametrize("alone", [False, True])
def test_alone_and_batched(drafting: LLM, expected: Answers, plan: Plan, alone: bool) -> None:
    assert drafted_answers(drafting, expected, plan, alone=alone) == expected
    stats = drafting.engine.core.scheduler.stats()
    assert stats.num_draft_tokens > 0
    assert (stats.num_accepted_tokens == stats.num_draft_tokens) == (plan is draft_all_right)
    assert (stats.num_accepted_tokens == 0) == (plan is draft_all_wrong)


def test_in_chunks(tiny_model: Path, expected: Answers) -> None:
    settings = SETTINGS | {"max_num_batched_tokens": 16}
    with LLM(str(tiny_model), num_draft_tokens=5, **settings) as llm:
        assert drafted_answers(llm, expected, draft_at_random(3)) == expected


def test_preempted(tiny_model: Path, expected: Answers) -> None:
    settings = SETTINGS | {"block_size": 16}
    with LLM(str(tiny_model), num_draft_tokens=5, **settings) as llm:
        block_bytes = SETTINGS["kv_cache_bytes"] // (llm.engine.core.scheduler.stats().num_total_blocks + 1)
    settings["kv_cache_bytes"] = 10 * block_bytes
    with LLM(str(tiny_model), num_draft_tokens=5, **settings) as llm:
        assert drafted_answers(llm, expected, draft_at_random(4)) == expected
        stats = llm.engine.core.scheduler.stats()
        assert stats.num_preemptions > 0
        assert stats.num_accepted_tokens > 0


def test_the_reference_attention_and_a_worker_of_its_own(tiny_model: Path, expected: Answers) -> None:
    options = {"backend_options": {"attention": "reference"}, "executor": "process"}
    with LLM(str(tiny_model), num_draft_tokens=5, **SETTINGS, **options) as llm:
        assert drafted_answers(llm, expected, draft_at_random(5)) == expected


def test_log_probabilities_are_those_of_the_tokens(
    tiny_model: Path, drafting: LLM, expected: Answers
) -> None:
    drafted_answers(drafting, expected, draft_at_random(6))
    (drafted,) = drafting.generate(PROMPTS[1:2], PARAMS[1])
    with LLM(str(tiny_model), **SETTINGS) as plain:
        (known,) = plain.generate(PROMPTS[1:2], PARAMS[1])
    assert drafted.outputs[0].logprobs is not None
    assert known.outputs[0].logprobs is not None
    for found, right in zip(drafted.outputs[0].logprobs, known.outputs[0].logprobs, strict=True):
        assert list(found) == list(right)
        values = [p.logprob for p in right.values()]
        assert [p.logprob for p in found.values()] == pytest.approx(values, abs=1e-4)
        assert [p.rank for p in found.values()] == [p.rank for p in right.values()]


def test_a_text_that_repeats_is_answered_in_fewer_steps(tiny_model: Path, drafting: LLM) -> None:
    # A tiny random model soon says the same again and again.
    params = SamplingParams(temperature=0.0, max_tokens=80, ignore_eos=True)
    with LLM(str(tiny_model), **SETTINGS) as plain:
        known = answers(plain, PROMPTS[:1], [params])
    assert answers(drafting, PROMPTS[:1], [params]) == known
    assert drafting.engine.core.scheduler.stats().num_accepted_tokens > 20


def test_a_stop_string_within_accepted_drafts_ends_the_text(
    tiny_model: Path, drafting: LLM, expected: Answers
) -> None:
    with LLM(str(tiny_model), **SETTINGS) as plain:
        (output,) = plain.generate(PROMPTS[:1], PARAMS[0])
        text = output.outputs[0].text
        stop = text[len(text) // 2 : len(text) // 2 + 3]
        params = [SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, stop=stop), *PARAMS[1:]]
        (stopped,) = plain.generate(PROMPTS[:1], params[:1])
    drafted_answers(drafting, expected, draft_all_right)
    (drafted,) = drafting.generate(PROMPTS[:1], params[:1])
    assert drafted.outputs[0].finish_reason == "stop"
    assert drafted.outputs[0].text == stopped.outputs[0].text
    assert drafted.outputs[0].token_ids == stopped.outputs[0].token_ids


def test_drafts_need_rows_beside_the_request(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="num_draft_tokens 4 needs max_num_seqs of at least 5, got 4"):
        LLM(str(tiny_model), num_draft_tokens=4, **SETTINGS | {"max_num_seqs": 4})


@pytest.mark.parametrize("count", [-1, 32])
def test_the_number_of_drafts_has_bounds(tiny_model: Path, count: int) -> None:
    with pytest.raises(ConfigError, match="num_draft_tokens must be between 0 and 31"):
        LLM(str(tiny_model), num_draft_tokens=count, **SETTINGS)
