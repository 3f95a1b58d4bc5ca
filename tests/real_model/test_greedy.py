"""On the real model greedy tokens are transformers' own, however the work is divided into steps."""

from __future__ import annotations

from real_model.conftest import GREEDY, StartEngine, assert_same
from real_model.greedy_reference import Answer
from real_model.prompts import PROMPTS


def test_prompts_one_by_one(start: StartEngine, reference: list[Answer]) -> None:
    llm = start(enable_prefix_caching=False)
    outputs = [llm.generate(prompt, GREEDY)[0] for prompt in PROMPTS]
    assert_same(reference, [output.outputs[0].token_ids for output in outputs])


def test_all_prompts_together(start: StartEngine, reference: list[Answer]) -> None:
    llm = start(enable_prefix_caching=False)
    outputs = llm.generate(PROMPTS, GREEDY)
    assert_same(reference, [output.outputs[0].token_ids for output in outputs])


def test_with_a_warm_prefix_cache(start: StartEngine, reference: list[Answer]) -> None:
    llm = start(enable_prefix_caching=True)
    llm.generate(PROMPTS, GREEDY)
    outputs = llm.generate(PROMPTS, GREEDY)
    assert sum(output.num_cached_tokens for output in outputs) > 0
    assert_same(reference, [output.outputs[0].token_ids for output in outputs])


def test_prompts_in_chunks_of_sixteen_tokens(start: StartEngine, reference: list[Answer]) -> None:
    llm = start(max_num_batched_tokens=16, max_num_seqs=16)
    outputs = llm.generate(PROMPTS, GREEDY)
    assert_same(reference, [output.outputs[0].token_ids for output in outputs])
