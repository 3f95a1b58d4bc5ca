"""Streams beside other calls: nothing is lost, nothing hangs, nothing is left behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core_engine import LLM, SamplingParams
from core_engine.errors import EngineClosed

TWELVE = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def in_engine(llm: LLM) -> int:
    stats = llm.engine.core.scheduler.stats()
    return stats.num_running + stats.num_waiting


def test_case_28_what_another_call_computes_is_kept_for_the_stream(llm: LLM) -> None:
    (whole,) = llm.generate([[1, 2, 3]], TWELVE)
    stream = llm.stream([1, 2, 3], TWELVE)
    chunks = [next(stream) for _ in range(3)]
    llm.generate([[4]], SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True))
    chunks += stream
    assert [t for chunk in chunks for t in chunk.token_ids] == whole.outputs[0].token_ids
    assert "".join(chunk.text for chunk in chunks) == whole.outputs[0].text
    assert chunks[-1].finish_reason == "length"


def test_a_stream_that_nobody_read_leaves_nothing(llm: LLM) -> None:
    stream = llm.stream([1, 2, 3], TWELVE)
    assert in_engine(llm) == 1
    del stream
    gc.collect()
    assert in_engine(llm) == 0


@pytest.fixture
def broken_step(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def break_next_step() -> None:
        def fail(step: object) -> None:
            monkeypatch.undo()
            raise RuntimeError("the step failed")

        monkeypatch.setattr(llm.engine.core.executor, "execute_model", fail)

    return break_next_step  # type: ignore[return-value]


def test_a_step_that_fails_in_another_call_ends_the_stream_with_an_error(llm: LLM, broken_step: Any) -> None:
    stream = llm.stream([1, 2, 3], TWELVE)
    next(stream)
    broken_step()
    with pytest.raises(RuntimeError, match="the step failed"):
        llm.generate([[4]], TWELVE)
    assert [chunk.finish_reason for chunk in stream][-1] == "error"
    assert in_engine(llm) == 0


def test_after_a_failed_step_the_engine_goes_on(llm: LLM, broken_step: Any) -> None:
    (before,) = llm.generate([[1, 2, 3]], TWELVE)
    broken_step()
    with pytest.raises(RuntimeError, match="the step failed"):
        llm.generate([[1, 2, 3]], TWELVE)
    (after,) = llm.generate([[1, 2, 3]], TWELVE)
    assert after.outputs[0].token_ids == before.outputs[0].token_ids
    stats = llm.engine.core.scheduler.stats()
    assert stats.num_free_blocks == stats.num_total_blocks


def test_a_stream_of_a_closed_engine_says_so(tiny_model: Path) -> None:
    llm = LLM(str(tiny_model), backend="cpu", kv_cache_bytes=4 << 20)
    stream = llm.stream([1, 2, 3], TWELVE)
    next(stream)
    llm.close()
    with pytest.raises(EngineClosed):
        list(stream)
