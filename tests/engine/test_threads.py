"""Several threads share one engine."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

from core_engine import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)


def test_threads_get_what_each_would_get_alone(llm: LLM) -> None:
    prompts = [[place + 1, 2, 3] for place in range(8)]
    alone = [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)]

    def ask(place: int) -> list[int]:
        if place % 2:
            return [token for chunk in llm.stream(prompts[place], GREEDY) for token in chunk.token_ids]
        return llm.generate([prompts[place]], GREEDY)[0].outputs[0].token_ids

    with ThreadPoolExecutor(4) as threads:
        for _ in range(4):
            assert list(threads.map(ask, range(8))) == alone
    stats = llm.engine.core.scheduler.stats()
    assert stats.num_running + stats.num_waiting == 0


def test_a_stream_that_is_dropped_in_the_midst_of_a_call_is_discarded_by_the_next(llm: LLM) -> None:
    engine, stream = llm.engine, llm.stream([1, 2, 3], GREEDY)
    next(stream)
    with engine._call():  # as a collector that runs within a step finds it
        del stream
        gc.collect()
    llm.generate([[4]], GREEDY)
    assert not engine._states
