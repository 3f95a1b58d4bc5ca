"""What every worker does about its communicator."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from typing import Any

import pytest

from core_engine.executor.worker_host import WorkerHost
from core_engine.parallel import torch_communicator
from core_engine.testing.fake_backend import load_fake_backend
from core_engine.testing.fake_context import fake_worker_context
from core_engine.testing.fake_worker import FakeModelRunner, FakeWorker


class Recorder:
    """A communicator that notes whether its runner was gone when it was closed."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self.arguments, self.keywords = arguments, keywords
        self.runner: Any = lambda: None
        self.closed: list[bool] = []

    def close(self) -> None:
        gc.collect()
        self.closed.append(self.runner() is None)


@pytest.fixture(autouse=True)
def recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_communicator, "TorchCommunicator", Recorder)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_ranks_join_where_there_are_several(num_ranks: int) -> None:
    worker = FakeWorker(
        dataclasses.replace(fake_worker_context(), world_size=num_ranks, rendezvous="/where/they/meet")
    )
    worker.device = "chip"
    worker.join_ranks("acme-link")
    if num_ranks == 1:
        assert worker.communicator is None
    else:
        assert isinstance(worker.communicator, Recorder)
        assert worker.communicator.arguments == ("acme-link", "/where/they/meet", 0, 2)
        assert worker.communicator.keywords == {"device": "chip"}


def test_the_runner_gets_the_workers_communicator_which_is_closed_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    communicator: Any = Recorder()
    init_device, init_runner = FakeWorker.init_device, FakeModelRunner.__init__

    def join(self: FakeWorker) -> Any:
        self.communicator = communicator
        return init_device(self)

    def keep(self: FakeModelRunner, context: Any) -> None:
        init_runner(self, context)
        assert context.communicator is communicator
        communicator.runner = weakref.ref(self)

    monkeypatch.setattr(FakeWorker, "init_device", join)
    monkeypatch.setattr(FakeModelRunner, "__init__", keep)
    host = WorkerHost(load_fake_backend(), fake_worker_context())
    host.init_device()
    assert communicator.runner() is not None

    assert host.shutdown() is True
    assert host.shutdown() is False
    assert communicator.closed == [True]
