"""Two worker processes that compute every step together."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from executor.processes import is_running, wait_until_gone

from core_engine._ragged import Ragged
from core_engine.backends.backend import Backend
from core_engine.errors import DeviceLost, EngineClosed, EngineError, WorkerDied
from core_engine.executor import process, worker_group
from core_engine.executor.codec import encode
from core_engine.executor.process import ProcessExecutor
from core_engine.executor.start import create_executor
from core_engine.executor.worker_group import GroupCall
from core_engine.plugin import WorkerPlan
from core_engine.scheduler.output import SchedulerOutput
from core_engine.testing.fake_context import fake_worker_context
from core_engine.testing.fake_model import FakeModel

Start = Callable[[Any], None]
Launch = Callable[..., ProcessExecutor]


@pytest.fixture(autouse=True)
def folder_of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the engine makes its temporary folders."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def launch(backend: Backend) -> Iterator[Launch]:
    """Build executors of two ranks on the backend ``acme``; keywords are the backend's options."""
    executors = []

    def build(**options: Any) -> ProcessExecutor:
        context = fake_worker_context(options=options)
        contexts = tuple(
            dataclasses.replace(context, plan=WorkerPlan(rank=rank, device_indices=(0,)), world_size=2)
            for rank in range(2)
        )
        executor = create_executor(backend, contexts, {})
        assert isinstance(executor, ProcessExecutor)
        executors.append(executor)
        return executor

    yield build
    for executor in executors:
        executor.shutdown()


def test_two_ranks_compute_what_the_model_says_and_both_go_away(
    launch: Launch,
    start: Start,
    first_step: SchedulerOutput,
    second_step: SchedulerOutput,
    folder_of_ranks: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = launch()
    (folder,) = folder_of_ranks.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    start(executor)
    sent: list[GroupCall] = []
    call = executor._group.call

    def send(method: str, argument: bytes = b"") -> GroupCall:
        assert not any(one.unanswered() for one in sent), "the step before is still under way"
        sent.append(call(method, argument))
        return sent[-1]

    monkeypatch.setattr(executor._group, "call", send)

    handles = [executor.execute_model(step) for step in (first_step, second_step)]
    tokens = [handle.result(60).sampled_token_ids.values.tolist() for handle in reversed(handles)]

    params = first_step.new_requests[0].sampling_params
    assert tokens == [[token] for token in reversed(FakeModel().generate([1, 2, 3], params, 2))]
    assert handles[0].result() is handles[0].result()
    answers = executor._group.call("execute_model", empty_step(2)).results(60)
    assert answers[0] != b"", "rank 0 answers"
    assert answers[1] == b"", "the others say no more than that they are done"
    assert executor.check_health().healthy
    # Each leads a process group, which an interrupt from the terminal does not reach; any other is no harm.
    first, second = executor.pids
    assert [os.getpgid(first), os.getpgid(second)] == [first, second]
    os.kill(second, signal.SIGINT)
    assert executor.check_health().healthy
    assert executor.failure is None

    assert executor.shutdown() is True
    assert executor.shutdown() is False
    assert not any(map(is_running, executor.pids))
    assert list(folder_of_ranks.iterdir()) == []
    assert executor.failure is None
    with pytest.raises(EngineClosed):
        executor.check_health()
    printed = capfd.readouterr().err
    assert "[rank 1 of 2] acme speaks on stdout" in printed
    assert "[rank 0 of 2] acme logs" in printed
    assert "[rank 1 of 2] acme logs" not in printed, "once is enough"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_other_and_all_calls_at_once(
    launch: Launch,
    start: Start,
    first_step: SchedulerOutput,
    folder_of_ranks: Path,
    capfd: pytest.CaptureFixture[str],
    rank: int,
) -> None:
    executor = launch(do="hang", only_rank=rank)
    start(executor)
    handle = executor.execute_model(first_step)
    child = printed_pid(capfd)
    os.kill(executor.pids[rank], signal.SIGKILL)

    died = (
        rf"worker process {executor.pids[rank]} \(rank {rank} of 2\) ended by signal 9; its last output was:"
    )
    with pytest.raises(WorkerDied, match=rf"(?s){died}.*its child is {child}"):
        handle.result(60)
    with pytest.raises(WorkerDied, match=died):
        executor.execute_model(first_step)
    with pytest.raises(WorkerDied, match=died):
        executor.check_health()
    assert isinstance(executor.failure, WorkerDied)
    for pid in (*executor.pids, child):
        wait_until_gone(pid)
    assert executor.shutdown() is True
    assert list(folder_of_ranks.iterdir()) == []


def test_a_rank_that_fails_while_the_other_waits_for_it_ends_both(
    launch: Launch, start: Start, first_step: SchedulerOutput, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_group, "_OUT_OF_STEP_S", 0.5)
    executor = launch(do="lose", only_rank=1)
    start(executor)
    with pytest.raises(DeviceLost, match=r"^rank 1: no link") as caught:
        executor.execute_model(first_step).result(60)
    assert "in the worker process (rank 1 of 2):" in caught.value.__notes__[0]
    reason = "rank 1 failed in execute_model while rank 0 waited for it: DeviceLost: rank 1: no link"
    with pytest.raises(WorkerDied, match=reason):
        executor.execute_model(first_step)
    assert str(executor.failure).endswith(reason)
    for pid in executor.pids:
        wait_until_gone(pid)


@pytest.mark.parametrize("only_rank", [{}, {"only_rank": 1}], ids=["all ranks", "one rank"])
def test_after_an_error_that_keeps_nobody_waiting_the_ranks_go_on(
    launch: Launch, start: Start, first_step: SchedulerOutput, only_rank: dict[str, int]
) -> None:
    executor = launch(do="raise-once-late", **only_rank)
    start(executor)
    with pytest.raises(DeviceLost, match="^rank 1: no link" if only_rank else "^no link"):
        executor.execute_model(empty_step_message(0)).result(60)
    assert executor.failure is None
    later = dataclasses.replace(first_step, step_id=1)
    output = executor.execute_model(later).result(60)
    params = first_step.new_requests[0].sampling_params
    assert output.sampled_token_ids.values.tolist() == FakeModel().generate([1, 2, 3], params, 1)


def test_a_start_that_fails_on_one_rank_tells_its_error_and_leaves_nothing(
    launch: Launch, folder_of_ranks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_group, "_OUT_OF_STEP_S", 0.5)
    executor = launch(do="fail-init", only_rank=1)
    with pytest.raises(DeviceLost, match=r"^rank 1: no link"):
        executor.init_device()
    for pid in executor.pids:
        wait_until_gone(pid)
    assert executor.shutdown() is True
    assert list(folder_of_ranks.iterdir()) == []


def test_processes_that_cannot_be_started_leave_nothing(
    launch: Launch, folder_of_ranks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    popen = subprocess.Popen

    def only_one(*arguments: Any, **keywords: Any) -> Any:
        if started:
            raise OSError("no more processes")
        started.append(popen(*arguments, **keywords))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", only_one)
    with pytest.raises(EngineError, match=r"not all .* could be started: .*no more processes"):
        launch()
    assert not is_running(started[0].pid)
    assert list(folder_of_ranks.iterdir()) == []


def test_without_a_folder_to_meet_in_no_process_starts(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(EngineError, match=r"no folder to meet in: .*missing.*; set TMPDIR"):
        launch()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_process_that_is_forked_off_leaves_the_ranks_to_its_parent(
    launch: Launch, start: Start, first_step: SchedulerOutput, second_step: SchedulerOutput
) -> None:
    executor = launch()
    start(executor)
    executor.execute_model(first_step).result(60)
    child = os.fork()
    if child == 0:
        refused = False
        try:
            executor.execute_model(second_step)
        except EngineClosed:
            refused = isinstance(executor.failure, EngineClosed)
            executor.shutdown()
        finally:
            os._exit(0 if refused else 1)
    assert os.waitpid(child, 0) == (child, 0)
    executor.execute_model(second_step).result(60)
    assert executor.failure is None


def test_ill_and_silent_ranks_are_named_and_a_stopped_one_does_not_hold_up_the_end(
    launch: Launch, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = launch(do="be-ill", only_rank=1)
    start(executor)
    health = executor.check_health()
    assert (health.healthy, health.detail) == (False, "rank 1: too hot")

    os.kill(executor.pids[1], signal.SIGSTOP)
    monkeypatch.setattr(process, "_HEALTH_S", 0.2)
    assert executor.check_health().detail == "rank 1 did not answer within 0.2 s"
    monkeypatch.setattr(worker_group, "_SHUTDOWN_S", 0.2)
    monkeypatch.setattr(worker_group, "_EXIT_S", 3600)
    assert executor.shutdown() is True
    assert not any(map(is_running, executor.pids))


SCRIPT = """
import dataclasses, os, signal, sys, tempfile, time
tempfile.tempdir = sys.argv[1]
sys.path.insert(0, sys.argv[2])
from core_engine.backends.installed import BACKEND_GROUP, find_entries
from core_engine.backends.loading import load_backend
from core_engine.executor.worker_group import GroupCall
from core_engine.executor.start import create_executor
from core_engine.plugin import WorkerPlan
from core_engine.testing.fake_context import fake_worker_context
(entry,) = (entry for entry in find_entries(BACKEND_GROUP) if entry.name == "acme")
context = fake_worker_context(options={"do": "hang", "only_rank": 1})
plans = [WorkerPlan(rank=rank, device_indices=(0,)) for rank in range(2)]
contexts = tuple(dataclasses.replace(context, plan=plan, world_size=2) for plan in plans)
executor = create_executor(load_backend(entry), contexts, {})
print(*executor.pids, flush=True)
executor.init_device()
executor._group.call("execute_model", bytes.fromhex(sys.argv[3]))
while "its child is" not in "".join(executor._group._workers[1]._log.last_lines()):
    time.sleep(0.05)
def wait_until_stopped(pid):
    while open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)
"""


@pytest.mark.parametrize(
    "tail",
    [
        "os.kill(os.getpid(), signal.SIGKILL)\n",
        # It is the system that wakes and ends what was stopped when its parent went.
        "os.kill(executor.pids[0], signal.SIGSTOP); wait_until_stopped(executor.pids[0]); os._exit(0)\n",
        "raise SystemExit\n",
    ],
    ids=["is killed", "exits at once, a rank stopped", "ends without shutdown"],
)
def test_no_rank_outlives_its_parent_in_the_middle_of_a_step(
    tmp_path: Path, site: Path, folder_of_ranks: Path, tail: str
) -> None:
    """Rank 1 computes for ever, with a child of its own, and rank 0 waits for it in a collective."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + tail)
    arguments = [str(folder_of_ranks), str(site), empty_step(0).hex()]
    done = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=120
    )
    assert "its child is" in done.stderr, done.stderr
    (child,) = re.findall(r"its child is (\d+)", done.stderr)
    for pid in (*done.stdout.split(), child):
        wait_until_gone(int(pid))
    assert list(folder_of_ranks.iterdir()) == []


def empty_step_message(step_id: int) -> SchedulerOutput:
    nothing = np.array([], dtype=np.int32)
    return SchedulerOutput(
        step_id=step_id,
        request_ids=(),
        num_scheduled_tokens=nothing,
        num_computed_tokens=nothing,
        new_block_ids=(Ragged.from_rows([]),),
    )


def empty_step(step_id: int) -> bytes:
    return encode(empty_step_message(step_id))


def printed_pid(capfd: pytest.CaptureFixture[str]) -> int:
    """Wait until a worker has printed the process id of its child, and return it."""
    seen = ""
    deadline = time.monotonic() + 60
    while not (found := re.search(r"its child is (\d+)\n", seen)):
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)
        seen += capfd.readouterr().err
    return int(found[1])
