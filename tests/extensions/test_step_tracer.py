from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core_engine._ragged import Ragged
from core_engine.errors import EngineError
from core_engine.executor.worker_host import WorkerHost
from core_engine.extensions.loading import find_extensions
from core_engine.extensions.step_tracer import DEFAULT_TRACE_FILE
from core_engine.hookspecs import ModelRunnerApi, WorkerApi
from core_engine.scheduler.output import SchedulerOutput
from core_engine.testing.fake_backend import load_fake_backend
from core_engine.testing.fake_context import fake_worker_context
from core_engine.worker.hook_manager import hook_names


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "trace.json"
    monkeypatch.setenv("CORE_ENGINE_TRACE_FILE", str(path))
    return path


def traced_host() -> WorkerHost:
    return WorkerHost(load_fake_backend(), fake_worker_context(), find_extensions(("step-tracer",), {}))


def empty_step(step_id: int) -> SchedulerOutput:
    none = np.zeros(0, dtype=np.int32)
    return SchedulerOutput(
        step_id=step_id,
        request_ids=(),
        num_scheduled_tokens=none,
        num_computed_tokens=none,
        new_block_ids=(),
    )


def events(trace: Path) -> list[dict[str, Any]]:
    return [event for event in json.loads(trace.read_text()) if event["ph"] != "M"]


def test_calls_of_worker_and_runner_are_nested_pairs(trace: Path) -> None:
    host = traced_host()
    host.init_device()
    host.load_model()
    host.shutdown()
    assert [(event["ph"], event["cat"], event["name"]) for event in events(trace)] == [
        ("B", "worker", "init_device"),
        ("E", "worker", "init_device"),
        ("B", "worker", "load_model"),
        ("B", "runner", "load_model"),
        ("E", "runner", "load_model"),
        ("E", "worker", "load_model"),
        ("B", "worker", "shutdown"),
        ("E", "worker", "shutdown"),
    ]
    times = [event["ts"] for event in events(trace)]
    assert times == sorted(times)
    assert len({(event["pid"], event["tid"]) for event in events(trace)}) == 1


def test_a_step_carries_its_id_tokens_and_requests_and_a_failure_its_error(trace: Path) -> None:
    host = traced_host()
    host.init_device()
    step = SchedulerOutput(
        step_id=7,
        request_ids=("a", "b"),
        num_scheduled_tokens=np.array([3, 1], dtype=np.int32),
        num_computed_tokens=np.array([0, 5], dtype=np.int32),
        new_block_ids=(Ragged.from_rows([[1], []]),),
    )
    with pytest.raises(EngineError, match="wrapped by step-tracer, raised RuntimeError"):
        host.execute_model(step)
    begin, end = events(trace)[2], events(trace)[-1]
    assert begin["args"] == {"step_id": 7, "num_tokens": 4, "num_requests": 2}
    assert end["args"] == {"error": "RuntimeError: execute_model before initialize_kv_cache"}


def test_every_hook_of_both_roles_is_traced(trace: Path) -> None:
    host = traced_host()
    host.init_device()
    runner = host._worker.model_runner
    for name in hook_names(WorkerApi):
        assert "step-tracer" in wrappers(host._hooks, name)
    for name in hook_names(ModelRunnerApi):
        assert "step-tracer" in wrappers(runner._hooks, name)


def wrappers(hooks: Any, name: str) -> list[str]:
    return [item.plugin_name for item in getattr(hooks.hook, name).get_hookimpls() if item.wrapper]


def test_the_file_is_complete_json_at_every_moment(trace: Path) -> None:
    host = traced_host()
    assert events(trace) == []
    host.init_device()
    assert len(events(trace)) == 2


def test_a_process_that_dies_leaves_the_call_that_it_died_in(trace: Path) -> None:
    script = (
        "import os; from core_engine.testing import fake_worker as w\n"
        "w.FakeWorker.init_device = lambda self: os._exit(9)\n"
        "from core_engine.extensions.loading import find_extensions\n"
        "from core_engine.executor.worker_host import WorkerHost\n"
        "from core_engine.testing.fake_backend import load_fake_backend\n"
        "from core_engine.testing.fake_context import fake_worker_context\n"
        "extensions = find_extensions(('step-tracer',), {})\n"
        "WorkerHost(load_fake_backend(), fake_worker_context(), extensions).init_device()\n"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 9
    (event,) = events(trace)
    assert (event["ph"], event["name"]) == ("B", "init_device")


def test_the_default_file_lies_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CORE_ENGINE_TRACE_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    traced_host().shutdown()
    assert json.loads((tmp_path / DEFAULT_TRACE_FILE).read_text())


def test_calls_after_shutdown_are_not_traced(trace: Path) -> None:
    host = traced_host()
    host.shutdown()
    written = trace.read_text()
    host.shutdown()
    assert trace.read_text() == written
