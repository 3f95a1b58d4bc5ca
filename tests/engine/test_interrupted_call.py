"""What a signal handler may do in the midst of a call: it runs in the thread of that call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from core_engine import LLM, SamplingParams
from core_engine.errors import EngineClosed, EngineError
from core_engine.scheduler.output import SchedulerOutput
from core_engine.worker.output import StepHandle

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture
def own(tiny_model: Path) -> LLM:
    return LLM(str(tiny_model), backend="cpu", kv_cache_bytes=4 << 20)


def interrupt(llm: LLM, monkeypatch: pytest.MonkeyPatch, handler: Callable[[], None]) -> None:
    """Call ``handler`` in the midst of the next step, as Python does for a signal."""
    executor = llm.engine.core.executor
    compute = executor.execute_model

    def execute_model(step: SchedulerOutput) -> StepHandle:
        monkeypatch.setattr(executor, "execute_model", compute)
        handler()
        return compute(step)

    monkeypatch.setattr(executor, "execute_model", execute_model)


def test_the_engine_that_is_closed_ends_with_the_step(own: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = own.engine
    interrupt(own, monkeypatch, own.close)
    with pytest.raises(EngineClosed):
        own.generate([1, 2, 3], GREEDY)
    assert not engine.core.executor.shutdown()  # it was done
    own.close()


def test_an_exit_behind_a_close_passes(own: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = own.engine

    def handler() -> None:
        own.close()
        raise SystemExit(3)

    interrupt(own, monkeypatch, handler)
    with pytest.raises(SystemExit):
        own.generate([1, 2, 3], GREEDY)
    assert not engine.core.executor.shutdown()


def test_a_stream_can_be_closed(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = llm.stream([5, 6], SamplingParams(max_tokens=200, ignore_eos=True))
    next(stream)
    interrupt(llm, monkeypatch, stream.close)
    assert len(llm.generate([1, 2, 3], GREEDY)[0].outputs[0].token_ids) == 8
    assert list(stream) == []
    assert not llm.engine._states


def test_a_call_within_a_call_is_refused(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(llm, monkeypatch, lambda: void(llm.generate([4], GREEDY)))
    with pytest.raises(EngineError, match="called within a call of the same thread"):
        llm.generate([1, 2, 3], GREEDY)
    assert len(llm.generate([1, 2, 3], GREEDY)[0].outputs[0].token_ids) == 8


def void(_: object) -> None:
    """Forget a result."""
