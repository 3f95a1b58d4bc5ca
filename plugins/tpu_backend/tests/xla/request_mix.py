"""Requests of all kinds, drawn from a seed; prompts share prefixes, and some are longer than a step."""

from __future__ import annotations

import random

from core_engine import LLM, SamplingParams
from core_engine.engine.outputs import RequestOutput

__all__ = ["draw_requests", "tokens", "tokens_of"]

_VOCABULARY = 256


def draw_requests(count: int, *, seed: int = 0) -> tuple[list[list[int]], list[SamplingParams]]:
    """Draw prompts of 1 to 60 ids and parameters that mix every part of the sampler."""
    draw = random.Random(seed)
    prefixes = [[draw.randrange(_VOCABULARY) for _ in range(40)] for _ in range(3)]
    prompts, params = [], []
    for number in range(count):
        head = draw.choice(prefixes)[: draw.randint(0, 40)]
        tail = [draw.randrange(_VOCABULARY) for _ in range(draw.randint(1, 20))]
        prompts.append(head + tail)
        params.append(
            SamplingParams(
                temperature=draw.choice([0.0, 0.0, 0.7, 1.0]),
                top_k=draw.choice([0, 5, 50]),
                top_p=draw.choice([1.0, 0.9]),
                min_p=draw.choice([0.0, 0.05]),
                repetition_penalty=draw.choice([1.0, 1.0, 1.2]),
                presence_penalty=draw.choice([0.0, 0.5]),
                logprobs=draw.choice([None, None, 0, 3, 20]),
                prompt_logprobs=draw.choice([None, None, None, 2]),
                seed=number,
                max_tokens=draw.randint(1, 20),
                ignore_eos=True,
            )
        )
    return prompts, params


def tokens_of(outputs: list[RequestOutput]) -> list[list[int]]:
    """Return the ids of each output's first sequence."""
    return [list(output.outputs[0].token_ids) for output in outputs]


def tokens(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> list[list[int]]:
    """Generate together and return the ids."""
    return tokens_of(llm.generate(prompts, params))
