"""Answers of an engine whose drafts are taken from answers that are known already."""

from __future__ import annotations

from collections.abc import Sequence

from draft_oracle import Plan, use_oracles

from core_engine import LLM, RequestOutput, SamplingParams
from core_engine.scheduler.base import QueueScheduler
from core_engine.scheduler.request import RequestState

__all__ = ["PARAMS", "PROMPTS", "Answers", "answers", "drafted_answers"]

PROMPTS = [[7, 3, 100, 42], list(range(20, 57)), [5] * 18, [150, 2], list(range(100, 190))]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0.9, top_p=0.95, seed=3, max_tokens=24, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.7, seed=4, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0.7, repetition_penalty=1.2, seed=5, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=1.2, top_k=20, min_p=0.01, seed=6, n=2, max_tokens=24),
]

#: Of every sequence: its token ids, and the ids that its log-probabilities name.
Answers = list[list[tuple[list[int], list[list[int]]]]]


def answers(
    llm: LLM, prompts: Sequence[list[int]] = PROMPTS, params: Sequence[SamplingParams] = PARAMS
) -> Answers:
    return [_answer(output) for output in llm.generate(prompts, params)]


def drafted_answers(llm: LLM, known: Answers, plan: Plan, *, alone: bool = False) -> Answers:
    """Answer again, with drafts that ``known`` proves right or wrong as ``plan`` says."""
    scheduler = llm.engine.core.scheduler
    assert isinstance(scheduler, QueueScheduler)
    texts = {
        (tuple(prompt), stream): [*prompt, *token_ids]
        for prompt, sequences in zip(PROMPTS, known, strict=True)
        for stream, (token_ids, _) in enumerate(sequences)
    }

    def text_of(state: RequestState) -> list[int]:
        return texts[tuple(state.request.prompt_token_ids.tolist()), state.request.stream]

    use_oracles(scheduler, plan, text_of)
    if not alone:
        return answers(llm)
    return [
        found
        for prompt, params in zip(PROMPTS, PARAMS, strict=True)
        for found in answers(llm, [prompt], [params])
    ]


def _answer(output: RequestOutput) -> list[tuple[list[int], list[list[int]]]]:
    return [
        (list(sequence.token_ids), [list(row) for row in sequence.logprobs or ()])
        for sequence in output.outputs
    ]
