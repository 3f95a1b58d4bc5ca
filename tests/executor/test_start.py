from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import pytest

from core_engine.backends.backend import Backend
from core_engine.errors import ConfigError, EngineError
from core_engine.executor.base import Executor
from core_engine.executor.in_process import InProcessExecutor
from core_engine.executor.process import ProcessExecutor
from core_engine.executor.start import create_executor
from core_engine.plugin import WorkerPlan
from core_engine.scheduler.output import SchedulerOutput
from core_engine.testing.fake_context import fake_engine_config, fake_worker_context


def test_in_process_is_the_default_and_process_is_one_word_away(backend: Backend) -> None:
    inside = create_executor(backend, (fake_worker_context(),), {})
    outside = create_executor(backend, (fake_worker_context(fake_engine_config(executor="process")),), {})
    try:
        assert isinstance(inside, InProcessExecutor)
        assert isinstance(outside, ProcessExecutor)
        assert isinstance(inside, Executor)
        assert isinstance(outside, Executor)
    finally:
        outside.shutdown()


def test_both_executors_give_the_same_answers(
    backend: Backend, start: Callable[[Any], None], first_step: SchedulerOutput
) -> None:
    answers = []
    for kind in ("in-process", "process"):
        executor = create_executor(backend, (fake_worker_context(fake_engine_config(executor=kind)),), {})
        start(executor)
        output = executor.execute_model(first_step).result(60)
        assert output.logprobs is not None
        answers.append(
            (
                executor.get_kv_cache_spec(),
                executor.determine_available_memory(),
                executor.check_health(),
                output.request_ids,
                output.sampled_token_ids.values.tolist(),
                output.logprobs.logprobs.tolist(),
                executor.shutdown(),
                executor.shutdown(),
            )
        )
    assert answers[0] == answers[1]


def test_shutdown_after_a_failed_step_is_orderly_in_process(
    backend: Backend, start: Callable[[Any], None], first_step: SchedulerOutput
) -> None:
    executor = create_executor(backend, (fake_worker_context(options={"fail_at_step": 0}),), {})
    start(executor)
    with pytest.raises(EngineError, match="fail_at_step"):
        executor.execute_model(first_step)
    assert executor.shutdown() is True
    assert executor.shutdown() is False
    with pytest.raises(EngineError, match="shut down"):
        executor.load_model()


def test_an_unknown_executor_is_refused_with_the_nearest_name(backend: Backend) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'in-process'"):
        create_executor(backend, (fake_worker_context(fake_engine_config(executor="inprocess")),), {})


def test_several_workers_run_in_processes_whatever_was_asked_for(backend: Backend) -> None:
    context = fake_worker_context(fake_engine_config(executor="in-process"))
    contexts = tuple(
        dataclasses.replace(context, plan=WorkerPlan(rank=rank, device_indices=(0,)), world_size=2)
        for rank in range(2)
    )
    executor = create_executor(backend, contexts, {})
    try:
        assert isinstance(executor, ProcessExecutor)
        assert len(set(executor.pids)) == 2
    finally:
        executor.shutdown()


def test_the_plans_variables_are_set_in_process(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_VARIABLE", "before")
    plan = WorkerPlan(rank=0, device_indices=(0,), environment={"ACME_VARIABLE": "7"})
    create_executor(backend, (dataclasses.replace(fake_worker_context(), plan=plan),), {})
    assert os.environ["ACME_VARIABLE"] == "7"


def test_an_extension_that_is_asked_for_and_missing_is_refused_before_any_worker(backend: Backend) -> None:
    config = fake_engine_config(executor="process", extensions=("step-tracr",))
    with pytest.raises(ConfigError, match="Did you mean 'step-tracer'"):
        create_executor(backend, (fake_worker_context(config),), {})
