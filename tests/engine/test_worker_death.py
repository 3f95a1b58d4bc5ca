"""Workers that die while a model generates: everybody who waits hears of it, and nothing stays behind."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from core_engine import LLM, SamplingParams
from core_engine.errors import EngineClosed, UnsupportedFeature, WorkerDied
from core_engine.executor.process import ProcessExecutor

ENDLESS = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)


@pytest.fixture(params=[1, 2], ids=["one rank", "two ranks"])
def llm(tiny_model: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM(
        str(tiny_model),
        backend="cpu",
        # Several ranks have processes whatever is asked for.
        executor="process" if request.param == 1 else "in-process",
        tensor_parallel_size=request.param,
        kv_cache_bytes=4 << 20,
    ) as running:
        yield running


def test_a_worker_killed_during_generation_ends_every_request_and_the_engine(llm: LLM) -> None:
    executor = llm.engine.core.executor
    assert isinstance(executor, ProcessExecutor)
    victim = executor.pids[-1]
    assert llm.engine.config.executor == "process"
    if len(executor.pids) > 1:
        row = llm.engine.started.features["executor"]
        assert (row.state, row.reason) == ("process", "2 ranks, each in a process of its own")
    stream = llm.stream([1, 2, 3], ENDLESS)
    first = next(stream)
    assert first.token_ids
    failures: list[BaseException] = []

    def generate() -> None:
        try:
            llm.generate([[4, 5, 6], [7, 8, 9]], ENDLESS)
        except BaseException as error:
            failures.append(error)

    other = threading.Thread(target=generate)
    other.start()
    os.kill(victim, signal.SIGKILL)
    other.join(60)

    (failure,) = failures
    assert isinstance(failure, WorkerDied)
    assert f"worker process {victim}" in str(failure)
    assert "by signal 9" in str(failure)
    chunks = list(stream)
    assert chunks[-1].finish_reason == "error"
    assert "by signal 9" in str(chunks[-1].error)
    for _ in range(2):
        with pytest.raises(WorkerDied, match=r"this engine has ended, build a new one: .* by signal 9"):
            llm.generate([[1, 2, 3]], ENDLESS)
    llm.close()
    for pid in executor.pids:
        assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(EngineClosed):
        llm.generate([[1, 2, 3]], ENDLESS)


def test_an_engine_that_fails_after_its_workers_started_ends_them(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutdowns = []
    shutdown = ProcessExecutor.shutdown

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    def note(self: ProcessExecutor) -> bool:
        shutdowns.append(self.pids)
        return shutdown(self)

    monkeypatch.setattr(ProcessExecutor, "shutdown", note)
    monkeypatch.setattr("core_engine.engine.engine.LogprobFormatter", fail)
    with pytest.raises(KeyboardInterrupt):
        LLM(str(tiny_model), backend="cpu", executor="process", kv_cache_bytes=4 << 20)
    ((pid,),) = shutdowns
    assert not Path(f"/proc/{pid}").exists()


def test_adapters_over_several_ranks_are_refused_with_the_reason(tiny_model: Path) -> None:
    with pytest.raises(UnsupportedFeature, match=r"max_loras 1 with tensor_parallel_size 2: .*'cpu'"):
        LLM(str(tiny_model), backend="cpu", tensor_parallel_size=2, max_loras=1)
