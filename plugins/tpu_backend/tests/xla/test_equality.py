"""The same answers as the CPU backend, however the work is divided (cases 4, 5 and 10)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from request_mix import draw_requests, tokens, tokens_of
from xla_engine import BLOCK_BYTES, StartEngine

from core_engine import LLM, SamplingParams
from core_engine.engine.outputs import RequestOutput

GREEDY = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
PROMPTS, PARAMS = draw_requests(24, seed=5)


def logprobs(output: RequestOutput) -> list[dict[int, float]]:
    """Return the log-probabilities of prompt and answer, position by position."""
    rows = [*(output.prompt_logprobs or []), *(output.outputs[0].logprobs or [])]
    return [{token: item.logprob for token, item in row.items()} for row in rows if row]


def test_case_04_greedy_tokens_equal_the_cpu_backends(tpu: LLM, cpu: LLM) -> None:
    prompts = [prompt[:30] for prompt in PROMPTS[:6]]
    assert tokens_of(tpu.generate(prompts, GREEDY)) == tokens_of(cpu.generate(prompts, GREEDY))


def test_case_04_logits_equal_the_cpu_backends(tpu: LLM, cpu: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=20, prompt_logprobs=20, ignore_eos=True)
    compared = 0
    for ours, theirs in zip(
        tpu.generate(PROMPTS[:6], params), cpu.generate(PROMPTS[:6], params), strict=True
    ):
        for mine, other in zip(logprobs(ours), logprobs(theirs), strict=True):
            for token in mine.keys() & other.keys():
                assert mine[token] == pytest.approx(other[token], abs=1e-4)
                compared += 1
    assert compared > 1000


def test_case_10_seeded_tokens_equal_the_cpu_backends(tpu: LLM, cpu: LLM) -> None:
    assert tokens(tpu, PROMPTS, PARAMS) == tokens(cpu, PROMPTS, PARAMS)


def test_case_10_a_seed_fixes_the_tokens_alone_together_and_in_any_order(tpu: LLM) -> None:
    together = tokens(tpu, PROMPTS, PARAMS)
    alone = [
        tokens(tpu, [prompt], [params])[0] for prompt, params in zip(PROMPTS[:6], PARAMS[:6], strict=True)
    ]
    assert alone == together[:6]
    assert tokens(tpu, PROMPTS[::-1], PARAMS[::-1])[::-1] == together


def test_case_05_chunks_and_neighbours_change_nothing(tpu: LLM, cpu: LLM) -> None:
    # Prompts of up to 60 ids in steps of 32 tokens, beside other requests' decodes; then one after the other.
    long = [prompt for prompt in PROMPTS if len(prompt) > 33]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    together = tokens_of(tpu.generate(long, params))
    assert len(long) > 4
    assert together == [tokens_of(cpu.generate([prompt], params))[0] for prompt in long]


def test_case_05_a_prefix_from_the_cache_changes_nothing(tpu: LLM) -> None:
    prompt = [11, 12, 13] * 15
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    (first,), (second,) = tpu.generate([prompt], params), tpu.generate([prompt], params)
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 32)
    assert tokens_of([first]) == tokens_of([second])


def test_case_05_preempted_requests_resume_with_the_same_tokens(tpu: LLM, start: StartEngine) -> None:
    tight = start(kv_cache_bytes=9 * BLOCK_BYTES)
    expected = tokens(tpu, PROMPTS, PARAMS)
    assert tokens(tight, PROMPTS, PARAMS) == expected
    stats = tight.engine.core.scheduler.stats()
    assert stats.num_preemptions > 0
    assert stats.num_free_blocks == stats.num_total_blocks


def test_requests_that_come_and_go_leave_no_trace(tpu: LLM) -> None:
    runs = [tokens(tpu, PROMPTS, PARAMS) for _ in range(3)]
    assert all(before == after for before, after in pairwise(runs))
