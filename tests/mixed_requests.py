"""Requests of many kinds that run together, and what their answers are compared by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from core_engine import LLM, SamplingParams
from core_engine.engine.outputs import RequestOutput

__all__ = ["PARAMS", "PROMPTS", "ROOMY", "all_logprobs", "engine", "tokens"]

_PREFIX = list(range(40, 76))
PROMPTS = [[7, 3, 100, 42], list(range(20, 57)), [5] * 18, [*_PREFIX, 9, 8], [*_PREFIX, 1], [150]]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=2, prompt_logprobs=1),
    SamplingParams(temperature=0.9, top_p=0.95, seed=3, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=0.0, repetition_penalty=1.3, max_tokens=9, ignore_eos=True),
    SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=0.7, seed=4, max_tokens=15, ignore_eos=True, logprobs=1),
    SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True, prompt_logprobs=2),
]
#: Bytes of a KV cache that holds them all.
ROOMY = 1 << 20


@contextmanager
def engine(model: Path, attention: str, **settings: Any) -> Iterator[LLM]:
    """Start a small float32 engine with the backend option ``attention``."""
    defaults: dict[str, Any] = {
        "backend": "cpu",
        "dtype": "float32",
        "max_model_len": 128,
        "max_num_seqs": 4,
        "block_size": 16,
        "kv_cache_bytes": ROOMY,
    }
    options = {"attention": attention, **settings.pop("backend_options", {})}
    with LLM(str(model), backend_options=options, **{**defaults, **settings}) as llm:
        yield llm


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    """Return the ids of each output's first sequence."""
    return [list(output.outputs[0].token_ids) for output in outputs]


def all_logprobs(outputs: list[RequestOutput]) -> list[float]:
    """Return all log-probabilities in order, each after its token's id and before its rank."""
    found: list[float] = []
    for output in outputs:
        for row in [*(output.prompt_logprobs or []), *(output.outputs[0].logprobs or [])]:
            found += [
                number for key, item in (row or {}).items() for number in (key, item.logprob, item.rank)
            ]
    return found
