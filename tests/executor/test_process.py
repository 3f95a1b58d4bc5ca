from __future__ import annotations

import dataclasses
import gc
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from executor.processes import is_running, wait_until_gone
from tiny_distribution import add_distribution

from core_engine.backends.backend import Backend
from core_engine.backends.reference import make_refs
from core_engine.errors import (
    DeviceLost,
    EngineClosed,
    EngineError,
    OutOfDeviceMemory,
    PluginMismatch,
    StepTimeout,
    UnsupportedFeature,
    WorkerDied,
)
from core_engine.executor import process, worker_group
from core_engine.executor.process import ProcessExecutor
from core_engine.extensions.loading import find_extensions
from core_engine.plugin import WorkerPlan
from core_engine.scheduler.output import SchedulerOutput
from core_engine.testing.fake_context import fake_worker_context
from core_engine.testing.fake_model import FakeModel

Start = Callable[[Any], None]
Launch = Callable[..., ProcessExecutor]


@pytest.fixture
def launch(backend: Backend) -> Iterator[Launch]:
    """Build executors on the backend ``acme``; keywords are the backend's options."""
    executors = []

    def build(plan: WorkerPlan | None = None, **options: Any) -> ProcessExecutor:
        context = fake_worker_context(options=options)
        if plan is not None:
            context = dataclasses.replace(context, plan=plan)
        refs = make_refs(backend, (context.plan,), context.devices)
        executors.append(ProcessExecutor(refs, (context,)))
        return executors[-1]

    yield build
    for executor in executors:
        executor.shutdown()


def test_a_worker_process_computes_what_the_model_says(
    launch: Launch, start: Start, first_step: SchedulerOutput, second_step: SchedulerOutput
) -> None:
    executor = launch()
    start(executor)
    first, second = (executor.execute_model(step) for step in (first_step, second_step))
    tokens = [handle.result(60).sampled_token_ids.values.tolist() for handle in (first, second)]
    params = first_step.new_requests[0].sampling_params
    assert tokens == [[token] for token in FakeModel().generate([1, 2, 3], params, 2)]
    assert first.result() is first.result()
    assert executor.check_health().healthy


def test_the_worker_lives_in_a_process_of_its_own_and_gives_it_back(launch: Launch, start: Start) -> None:
    executor = launch()
    start(executor)
    assert executor.pids[0] != os.getpid()
    assert executor.shutdown() is True
    assert executor.shutdown() is False
    assert not is_running(executor.pids[0])
    with pytest.raises(EngineClosed):
        executor.check_health()


def test_an_executor_that_is_dropped_ends_its_worker(backend: Backend, start: Start) -> None:
    context = fake_worker_context()
    executor = ProcessExecutor(make_refs(backend, (context.plan,), context.devices), (context,))
    start(executor)
    (pid,) = executor.pids
    del executor
    gc.collect()
    wait_until_gone(pid)


def test_the_worker_never_writes_to_the_parents_stdout(
    launch: Launch, start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    executor = launch()
    start(executor)
    executor.shutdown()
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "acme speaks on stdout" in captured.err
    assert "and so does its child" in captured.err


def test_the_log_of_the_worker_is_shown_as_that_of_the_engine_is(
    launch: Launch, start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    executor = launch()
    start(executor)
    executor.shutdown()
    assert "acme logs" in capfd.readouterr().err.splitlines()


def test_the_plans_variables_are_set_in_the_worker_alone(launch: Launch) -> None:
    executor = launch(WorkerPlan(rank=0, device_indices=(0,), environment={"ACME_VARIABLE": "7"}))
    assert executor.profile("ACME_VARIABLE") == "7"
    assert "ACME_VARIABLE" not in os.environ


@pytest.mark.parametrize("value", [None, "/some/where"])
def test_programs_that_the_worker_starts_get_the_callers_python_path(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if value is not None:
        monkeypatch.setenv("PYTHONPATH", value)
    assert launch().profile("PYTHONPATH") == (value or "unset")


def test_changed_device_variables_bring_no_new_detection(launch: Launch) -> None:
    # The backend's detect raises: a worker that asked it again could not start.
    plan = WorkerPlan(rank=0, device_indices=(0,), environment={"CUDA_VISIBLE_DEVICES": ""})
    assert launch(plan).init_device().device == "nothing"


def test_a_broken_torch_extension_in_the_environment_does_no_harm(launch: Launch, site: Path) -> None:
    modules = {"torch_npx": "raise ImportError('libnpx.so is missing')"}
    add_distribution(site, "torch-npx", {"torch.backends": {"npx": "torch_npx:autoload"}}, modules=modules)
    assert launch().init_device().device == "nothing"


def test_extensions_wrap_in_the_workers_process(backend: Backend, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    plan = WorkerPlan(rank=0, device_indices=(0,), environment={"CORE_ENGINE_TRACE_FILE": str(trace)})
    context = dataclasses.replace(fake_worker_context(), plan=plan)
    extensions = find_extensions(("step-tracer",), {})
    refs = make_refs(backend, (plan,), context.devices, ("step-tracer",))
    executor = ProcessExecutor(refs, (context,), extensions)
    executor.init_device()
    executor.shutdown()
    assert {event["pid"] for event in json.loads(trace.read_text())} == {executor.pids[0]}


def test_the_model_cannot_leave_the_process(launch: Launch, start: Start) -> None:
    with pytest.raises(UnsupportedFeature, match="'in-process'"):
        launch().get_model()


@pytest.mark.parametrize(
    ("do", "expected", "message"),
    [
        ("raise", EngineError, "the worker's execute_model raised ZeroDivisionError: by zero"),
        ("lose", DeviceLost, "no link"),
        ("sys-exit", EngineError, "the worker's execute_model raised SystemExit: the driver gives up"),
        ("abort", EngineError, "the worker's execute_model raised BaseException: the driver aborts"),
    ],
)
def test_an_error_in_a_step_arrives_as_its_own_type(
    launch: Launch,
    start: Start,
    first_step: SchedulerOutput,
    do: str,
    expected: type[Exception],
    message: str,
) -> None:
    executor = launch(do=do)
    start(executor)
    with pytest.raises(expected) as caught:
        executor.execute_model(first_step).result(60)
    assert type(caught.value) is expected
    assert str(caught.value) == message
    assert "AcmeWorker" in caught.value.__notes__[0] or "acme_worker.py" in caught.value.__notes__[0]


def test_shutdown_after_a_failed_step_is_orderly_and_idempotent(
    launch: Launch, start: Start, first_step: SchedulerOutput
) -> None:
    executor = launch(fail_at_step=0)
    start(executor)
    with pytest.raises(OutOfDeviceMemory, match="fail_at_step"):
        executor.execute_model(first_step).result(60)
    assert executor.check_health().healthy
    assert executor.shutdown() is True
    assert executor.shutdown() is False


def test_an_error_at_start_arrives_as_its_own_type(launch: Launch) -> None:
    with pytest.raises(DeviceLost, match="no link"):
        launch(do="fail-init").init_device()


def test_a_worker_that_ends_is_reported_with_its_last_words(
    launch: Launch, start: Start, first_step: SchedulerOutput
) -> None:
    executor = launch(do="exit")
    start(executor)
    with pytest.raises(WorkerDied, match=r"(?s)exit code 3.*driver: cable cut"):
        executor.execute_model(first_step).result(60)
    with pytest.raises(WorkerDied):
        executor.check_health()
    assert executor.shutdown() is True


def test_garbage_from_the_worker_is_a_clean_error(
    launch: Launch, start: Start, first_step: SchedulerOutput
) -> None:
    executor = launch(do="garbage")
    start(executor)
    with pytest.raises(EngineError, match="the stream is damaged"):
        executor.execute_model(first_step).result(60)
    executor.shutdown()
    assert not is_running(executor.pids[0])


def test_garbage_from_the_parent_ends_the_worker_with_one_line() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        module = ["-m", "core_engine.executor.worker", str(theirs.fileno()), str(os.getpid())]
        command = [sys.executable, *module]
        ours.sendall(struct.pack("<I", 3) + b"???")
        done = subprocess.run(command, pass_fds=(theirs.fileno(),), capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("core-engine worker: 3 bytes between executor and worker are no Start")
    assert done.stderr.count("\n") == 1


def test_a_killed_worker_is_reported(launch: Launch, start: Start, first_step: SchedulerOutput) -> None:
    executor = launch(do="hang")
    start(executor)
    handle = executor.execute_model(first_step)
    os.kill(executor.pids[0], signal.SIGKILL)
    with pytest.raises(WorkerDied, match="by signal 9"):
        handle.result(60)


def test_a_step_that_hangs_times_out_and_shutdown_ends_the_process(
    launch: Launch, start: Start, first_step: SchedulerOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_group, "_SHUTDOWN_S", 0.1)
    executor = launch(do="hang")
    start(executor)
    with pytest.raises(StepTimeout, match=r"step 0 did not finish within 0\.1 s"):
        executor.execute_model(first_step).result(0.1)
    monkeypatch.setattr(process, "_HEALTH_S", 0.1)
    assert executor.check_health().detail == "the worker did not answer within 0.1 s"
    executor.shutdown()
    assert not is_running(executor.pids[0])


def test_another_version_in_the_workers_environment_is_a_mismatch(launch: Launch, site: Path) -> None:
    (metadata,) = site.glob("*.dist-info/METADATA")
    metadata.write_text(metadata.read_text().replace("Version: 1.0", "Version: 2.0"))
    with pytest.raises(PluginMismatch, match=r"core-engine-acme 1\.0 .* core-engine-acme 2\.0"):
        launch().init_device()


def test_a_plugin_that_is_gone_is_a_mismatch(launch: Launch, site: Path) -> None:
    (entry_points,) = site.glob("*.dist-info/entry_points.txt")
    entry_points.unlink()
    with pytest.raises(PluginMismatch, match="nothing of that name"):
        launch().init_device()


SCRIPT = """
import os, sys
from pathlib import Path
with open("runs.txt", "a") as runs:
    runs.write("run\\n")
from core_engine.backends.installed import BACKEND_GROUP, find_entries
from core_engine.backends.loading import load_backend
from core_engine.backends.reference import make_refs
from core_engine.executor.process import ProcessExecutor
from core_engine.testing.fake_context import fake_worker_context
(entry,) = (entry for entry in find_entries(BACKEND_GROUP) if entry.name == "acme")
context = fake_worker_context(options={"do": sys.argv[1]})
refs = make_refs(load_backend(entry), (context.plan,), context.devices)
executor = ProcessExecutor(refs, (context,))
print(executor.init_device().device, executor.pids[0], flush=True)
"""


def run_script(folder: Path, site: Path, tail: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    python_path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    script.write_text(SCRIPT + tail)
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": python_path},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_script_without_a_main_guard_runs_once(tmp_path: Path, site: Path) -> None:
    done = run_script(tmp_path, site, "executor.shutdown()\n", "work")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("nothing ")
    assert (tmp_path / "runs.txt").read_text() == "run\n"


@pytest.mark.parametrize(
    "tail",
    ["", "os._exit(0)\n", "import signal; os.kill(os.getpid(), signal.SIGKILL)\n"],
    ids=["ends without shutdown", "exits at once", "is killed"],
)
def test_no_worker_outlives_its_parent(tmp_path: Path, site: Path, tail: str) -> None:
    done = run_script(tmp_path, site, tail, "work")
    wait_until_gone(int(done.stdout.split()[1]))


def test_a_worker_in_the_middle_of_a_step_ends_with_its_parent(tmp_path: Path, site: Path) -> None:
    tail = "executor._group.call('profile', b'\\xa5start'); os._exit(0)\n"
    source = (site / "acme_worker.py").read_text()
    (site / "acme_worker.py").write_text(source.replace("return os.environ", "time.sleep(3600)  #"))
    done = run_script(tmp_path, site, tail, "work")
    wait_until_gone(int(done.stdout.split()[1]))
