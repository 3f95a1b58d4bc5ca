"""An installed backend whose worker misbehaves on request, and the steps to drive it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_distribution import BACKENDS, add_distribution

from core_engine._ragged import Ragged
from core_engine.backends.backend import Backend
from core_engine.backends.installed import BACKEND_GROUP, find_entries
from core_engine.backends.loading import load_backend
from core_engine.kv_cache.specs import KVCacheConfig, KVCacheGroup
from core_engine.sampling.params import SamplingParams
from core_engine.scheduler.output import NewRequest, SchedulerOutput

#: The light module: detection always fails, so a worker that detects again is found out.
ACME = """
from core_engine.plugin import BackendInfo, hookimpl, load_class
from core_engine.testing.fake_backend import capabilities, create_model_runner, plan_workers

CORE_ENGINE_API = "0.1"

@hookimpl
def backend_info():
    return BackendInfo(name="acme", priority=1, description="for tests")

@hookimpl
def detect(probe):
    raise RuntimeError("detected again")

@hookimpl
def create_worker(context):
    return load_class("acme_worker:AcmeWorker")(context)
"""

#: The option ``do`` says what the worker does in ``execute_model``, ``only_rank`` which rank alone does it.
#: Several ranks meet in every step, after that.
ACME_WORKER = """
import logging, os, subprocess, sys, time
import torch
from core_engine.errors import DeviceLost
from core_engine.testing.fake_worker import FakeWorker

class CableCut(DeviceLost):
    pass

class AcmeWorker(FakeWorker):
    @property
    def do(self):
        rank = self.context.options.get("only_rank", self.context.plan.rank)
        return self.context.options.get("do") if rank == self.context.plan.rank else None

    def init_device(self):
        print("acme speaks on stdout")
        logging.getLogger("core_engine.acme").info("acme logs")
        os.system("echo and so does its child")
        if self.do == "fail-init":
            raise CableCut("no link")
        report = super().init_device()
        if self.context.world_size > 1:
            self.device = "cpu"
            self.join_ranks("gloo")
        return report

    def execute_model(self, scheduler_output):
        do = self.do
        if do == "exit":
            print("driver: cable cut", file=sys.stderr, flush=True)
            os._exit(3)
        if do == "sys-exit":
            sys.exit("the driver gives up")
        if do == "abort":
            raise BaseException("the driver aborts")
        if do == "raise":
            raise ZeroDivisionError("by zero")
        if do == "lose":
            raise CableCut("no link")
        if do == "garbage":
            os.write(int(sys.argv[1]), b"what a driver prints where it should not")
        if do == "hang":
            child = subprocess.Popen(["sleep", "3600"])
            print("its child is", child.pid, flush=True)
            time.sleep(3600)
        if self.communicator is not None:
            self.communicator.all_reduce(torch.ones(1))
        if do == "raise-once-late":
            self.context.options.clear()
            raise CableCut("no link")
        return super().execute_model(scheduler_output)

    def check_health(self):
        health = super().check_health()
        return type(health)(healthy=False, detail="too hot") if self.do == "be-ill" else health

    def profile(self, action):
        return os.environ.get(action, "unset")  # a way to ask for a variable
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path in which the backend ``acme`` is installed."""
    folder = tmp_path / "site"
    modules = {"acme_plugin": ACME, "acme_worker": ACME_WORKER}
    add_distribution(folder, "core-engine-acme", {BACKENDS: {"acme": "acme_plugin"}}, modules=modules)
    monkeypatch.syspath_prepend(str(folder))
    for module in modules:
        monkeypatch.delitem(sys.modules, module, raising=False)
    return folder


@pytest.fixture
def backend(site: Path) -> Backend:
    """The backend ``acme``, loaded as discovery loads it."""
    (entry,) = (entry for entry in find_entries(BACKEND_GROUP) if entry.name == "acme")
    return load_backend(entry)


@pytest.fixture
def start() -> Callable[[Any], None]:
    """Bring an executor to the point where it takes steps, in the order of the API."""

    def run(executor: Any) -> None:
        executor.init_device()
        executor.load_model()
        specs = executor.get_kv_cache_spec()
        executor.determine_available_memory()
        groups = (KVCacheGroup(layers=specs, shared={}),)
        executor.initialize_cache(KVCacheConfig(num_blocks=9, block_size=16, max_model_len=64, groups=groups))
        executor.compile_or_warm_up_model()

    return run


@pytest.fixture
def first_step() -> SchedulerOutput:
    """Step 0: request "a" computes its prompt (tokens 1, 2, 3) in block 1."""
    new = NewRequest(
        request_id="a",
        prompt_token_ids=np.array([1, 2, 3], dtype=np.int32),
        sampling_params=SamplingParams(temperature=0.0, logprobs=1),
        seed=2**64 - 1,
    )
    return SchedulerOutput(
        step_id=0,
        request_ids=("a",),
        num_scheduled_tokens=np.array([3], dtype=np.int32),
        num_computed_tokens=np.array([0], dtype=np.int32),
        new_block_ids=(Ragged.from_rows([[1]]),),
        new_requests=(new,),
    )


@pytest.fixture
def second_step() -> SchedulerOutput:
    """Step 1: request "a" computes the token that step 0 sampled."""
    return SchedulerOutput(
        step_id=1,
        request_ids=("a",),
        num_scheduled_tokens=np.array([1], dtype=np.int32),
        num_computed_tokens=np.array([3], dtype=np.int32),
        new_block_ids=(Ragged.from_rows([[]]),),
    )
