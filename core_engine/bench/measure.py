"""Run requests through an engine and note when each token came."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from core_engine.engine.engine import LLMEngine
from core_engine.engine.prompts import TokenizedPrompt
from core_engine.errors import EngineError
from core_engine.sampling.params import SamplingParams

__all__ = ["Measurement", "RequestTimes", "measure"]


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """One request: when it came in and when each of its tokens was there, in seconds."""

    arrival_s: float
    token_s: list[float]

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.token_s[0] - self.arrival_s

    @property
    def latency_s(self) -> float:
        """Time to the last token."""
        return self.token_s[-1] - self.arrival_s

    @property
    def inter_token_s(self) -> list[float]:
        """Times between neighbouring tokens."""
        return [later - earlier for earlier, later in zip(self.token_s, self.token_s[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class Measurement:
    """All requests of one run and its duration."""

    requests: list[RequestTimes]
    seconds: float
    num_steps: int


def measure(engine: LLMEngine, prompts: Sequence[list[int]], params: SamplingParams) -> Measurement:
    """Give all prompts to the engine at once and step until every one has been answered.

    Raises `EngineError` when one of them ends with an error.
    """
    ids = [f"bench-{index}" for index in range(len(prompts))]
    times: dict[str, RequestTimes] = {}
    pending = set(ids)
    num_steps = 0
    started = time.perf_counter()
    try:
        engine.add(
            [
                (name, TokenizedPrompt(None, prompt), params)
                for name, prompt in zip(ids, prompts, strict=True)
            ],
            stream=True,
        )
        times.update((name, RequestTimes(started, [])) for name in ids)
        while pending:
            engine.step()
            num_steps += 1
            now = time.perf_counter()
            for name in tuple(pending):
                for chunk in engine.take_chunks(name):
                    times[name].token_s.extend([now] * len(chunk.token_ids))
                    if chunk.error is not None:
                        raise EngineError(f"request {name} ended with an error: {chunk.error}")
                    if chunk.finish_reason is not None:
                        pending.discard(name)
    finally:
        engine.discard(ids)
    return Measurement(list(times.values()), time.perf_counter() - started, num_steps)
