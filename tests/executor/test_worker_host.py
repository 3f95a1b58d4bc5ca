from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from core_engine.backends.backend import Backend
from core_engine.errors import ContractError, DeviceLost, EngineError
from core_engine.executor.worker_host import WorkerHost
from core_engine.scheduler.output import SchedulerOutput
from core_engine.testing import fake_worker
from core_engine.testing.fake_backend import load_fake_backend
from core_engine.testing.fake_context import fake_worker_context
from core_engine.testing.fake_model import FakeModel
from core_engine.worker.facade import ModelRunnerFacade, WorkerFacade

Start = Callable[[Any], None]


@pytest.fixture
def fake() -> Backend:
    return load_fake_backend()


def test_a_host_runs_steps_through_worker_and_runner(
    fake: Backend, start: Start, first_step: SchedulerOutput
) -> None:
    host = WorkerHost(fake, fake_worker_context())
    start(host)
    assert isinstance(host.get_model(), FakeModel)
    params = first_step.new_requests[0].sampling_params
    output = host.execute_model(first_step).result()
    assert output.sampled_token_ids.values.tolist() == FakeModel().generate([1, 2, 3], params, 1)
    assert host.shutdown() is True
    assert host.shutdown() is False


def test_the_worker_reaches_its_runner_through_the_facade(
    fake: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    attach = fake_worker.FakeWorker.attach_model_runner

    def record(self: fake_worker.FakeWorker, runner: Any) -> None:
        seen.append(type(runner))
        attach(self, runner)

    monkeypatch.setattr(fake_worker.FakeWorker, "attach_model_runner", record)
    WorkerHost(fake, fake_worker_context()).init_device()
    assert seen == [ModelRunnerFacade]


@pytest.mark.parametrize("failure", [ZeroDivisionError("by zero"), SystemExit(3), BaseException("gone")])
def test_a_foreign_exception_of_a_hook_becomes_an_error_of_the_engine(
    fake: Backend, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    def fail(self: object) -> Any:
        raise failure

    monkeypatch.setattr(fake_worker.FakeWorker, "load_model", fail)
    host = WorkerHost(fake, fake_worker_context())
    host.init_device()
    with pytest.raises(EngineError, match=rf"the worker's load_model raised {type(failure).__name__}: "):
        host.load_model()


@pytest.mark.parametrize("hook", ["init_device", "load_model", "get_kv_cache_spec", "shutdown"])
def test_a_result_of_a_wrong_type_breaks_the_contract(
    fake: Backend, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    monkeypatch.setattr(fake_worker.FakeWorker, hook, lambda self: "done")
    host = WorkerHost(fake, fake_worker_context())
    with pytest.raises(ContractError, match=f"the worker's {hook} returned 'done' of type str"):
        getattr(host, hook)()


def test_a_step_without_a_handle_breaks_the_contract(
    fake: Backend, monkeypatch: pytest.MonkeyPatch, first_step: SchedulerOutput
) -> None:
    monkeypatch.setattr(fake_worker.FakeWorker, "execute_model", lambda self, scheduler_output: [1])
    with pytest.raises(ContractError, match=r"the worker's execute_model returned \[1\] of type list"):
        WorkerHost(fake, fake_worker_context()).execute_model(first_step)


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), DeviceLost("no link")])
def test_an_interrupt_and_the_engines_own_errors_pass(
    fake: Backend, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    def fail(self: object) -> Any:
        raise failure

    monkeypatch.setattr(fake_worker.FakeWorker, "check_health", fail)
    with pytest.raises(type(failure)):
        WorkerHost(fake, fake_worker_context()).check_health()


def test_the_runner_gets_the_device_and_the_narrowed_capabilities(
    fake: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    init_device = fake_worker.FakeWorker.init_device

    def narrow(self: fake_worker.FakeWorker) -> Any:
        report = init_device(self)
        return dataclasses.replace(
            report, capabilities=dataclasses.replace(report.capabilities, max_logprobs=5)
        )

    contexts = []
    create = fake_worker.FakeModelRunner.__init__

    def keep(self: fake_worker.FakeModelRunner, context: Any) -> None:
        contexts.append(context)
        create(self, context)

    monkeypatch.setattr(fake_worker.FakeWorker, "init_device", narrow)
    monkeypatch.setattr(fake_worker.FakeModelRunner, "__init__", keep)
    WorkerHost(fake, fake_worker_context()).init_device()
    (context,) = contexts
    assert context.device == "nothing"
    assert context.capabilities.max_logprobs == 5
    assert context.worker.capabilities.max_logprobs == 20


def test_a_worker_that_sets_no_device_is_refused(fake: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    init_device = fake_worker.FakeWorker.init_device

    def forget(self: fake_worker.FakeWorker) -> Any:
        report = init_device(self)
        self.device = None
        return report

    monkeypatch.setattr(fake_worker.FakeWorker, "init_device", forget)
    with pytest.raises(ContractError, match="did not set the worker's `device`"):
        WorkerHost(fake, fake_worker_context()).init_device()


def test_a_runner_with_another_signature_is_refused_at_start(
    fake: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_worker.FakeModelRunner, "dummy_run", lambda self, tokens: 1)
    with pytest.raises(ContractError, match=r"FakeModelRunner\.dummy_run\(tokens\)"):
        WorkerHost(fake, fake_worker_context()).init_device()


def test_a_worker_that_does_not_derive_from_the_base_is_refused(
    fake: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_worker, "FakeWorker", WorkerFacade)
    with pytest.raises(ContractError, match=r"WorkerFacade, which does not derive from .*WorkerBase"):
        WorkerHost(fake, fake_worker_context())
