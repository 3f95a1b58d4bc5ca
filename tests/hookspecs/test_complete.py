from __future__ import annotations

import pytest

from core_engine.errors import ContractError
from core_engine.hookspecs import ModelRunnerApi, WorkerApi
from core_engine.testing.fake_backend import load_fake_backend
from core_engine.testing.fake_context import fake_worker_context
from core_engine.worker.reports import DeviceReport, LoadReport
from core_engine.worker.worker import WorkerBase


class HalfWorker(WorkerBase):
    def init_device(self) -> DeviceReport:
        raise AssertionError("never reached")


class HalfRunner(ModelRunnerApi):
    def load_model(self) -> LoadReport:
        raise AssertionError("never reached")


def test_a_worker_that_misses_methods_is_refused_with_all_their_names() -> None:
    with pytest.raises(
        ContractError,
        match=r"HalfWorker does not implement determine_available_memory, execute_model of WorkerApi",
    ):
        HalfWorker(fake_worker_context())


def test_a_runner_that_misses_methods_is_refused_with_all_their_names() -> None:
    with pytest.raises(ContractError, match=r"HalfRunner .*capture_model, dummy_run.* of ModelRunnerApi"):
        HalfRunner()


def test_the_apis_themselves_cannot_be_created() -> None:
    with pytest.raises(ContractError, match="check_health"):
        WorkerApi()


def test_the_refusal_passes_unchanged_through_the_backends_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core_engine.testing.fake_worker.FakeWorker", HalfWorker)
    with pytest.raises(ContractError, match="does not implement determine_available_memory"):
        load_fake_backend().create_worker(fake_worker_context())
