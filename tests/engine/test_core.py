"""The loop of scheduler and executor: whatever fails, every request ends once, and others go on."""

from __future__ import annotations

import pytest
from engine.core_case import Core
from scheduler.harness import expected_tokens, kv_config, prompt_of, request

from core_engine.errors import (
    DeviceLost,
    EngineClosed,
    InvalidRequest,
    OutOfDeviceMemory,
    StepTimeout,
    WorkerDied,
)

FAILURES = [OutOfDeviceMemory("no room"), DeviceLost("gone"), StepTimeout("late"), ValueError("odd")]


@pytest.mark.parametrize("before_the_runner", [True, False])
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_a_failed_step_ends_its_own_requests_and_those_that_wait_live(
    failure: Exception, before_the_runner: bool
) -> None:
    core = Core(max_num_seqs=2)
    core.add(request("a"), request("b"), waits := request("waits"))
    core.step()
    core.executor.fail_with, core.executor.fails_before_the_runner = failure, before_the_runner

    with pytest.raises(type(failure)):
        core.step()

    assert [core.ends(name) for name in ("a", "b", "waits")] == [["error"], ["error"], []]
    assert "its step failed" in core.message("a")
    assert str(failure) in core.message("a")
    core.run()
    assert core.ends("waits") == ["length"]
    assert core.tokens("waits") == expected_tokens(waits)
    core.assert_clean()


@pytest.mark.parametrize("before_the_runner", [True, False])
def test_the_runner_learns_of_ends_and_preemptions_that_a_failed_step_told(before_the_runner: bool) -> None:
    core = Core(kv_config(num_blocks=9, max_model_len=32))
    first, second = request("first", 12, max_tokens=16), request("second", 12, max_tokens=16)
    core.add(first, second)
    core.executor.fail_with, core.executor.fails_before_the_runner = (
        OutOfDeviceMemory("no"),
        before_the_runner,
    )
    core.executor.fails_on = lambda step: bool(step.preempted_request_ids)

    with pytest.raises(OutOfDeviceMemory):
        core.run()
    core.run()

    assert core.ends("first") == ["error"]
    assert core.tokens("second") == expected_tokens(second)
    core.assert_clean()


def test_the_cache_holds_nothing_that_a_failed_step_wrote() -> None:
    core = Core(max_num_batched_tokens=8)
    prompt = prompt_of(20)
    core.add(request("lost", prompt))
    core.step()
    core.executor.fail_with = OutOfDeviceMemory("no room")
    with pytest.raises(OutOfDeviceMemory):
        core.step()
    core.add(again := request("again", prompt))

    core.run()

    assert core.outputs["again"][-1].num_cached_tokens == 0
    assert core.tokens("again") == expected_tokens(again)
    core.assert_clean()


def test_case_27_an_id_may_be_aborted_and_added_again_before_the_next_step() -> None:
    core = Core()
    core.add(request("x", prompt_of(6, 1)))
    core.step()
    core.core.finish(["x"], "abort")
    core.outputs.clear()
    core.add(second := request("x", prompt_of(9, 2)))

    core.run()

    assert core.tokens("x") == expected_tokens(second)
    core.assert_clean()


def test_case_27_also_when_the_step_that_would_have_told_of_the_abort_fails() -> None:
    core = Core()
    core.add(request("x", prompt_of(6, 1)), request("other"))
    core.step()
    core.core.finish(["x"], "abort")
    core.executor.fail_with, core.executor.fails_before_the_runner = OutOfDeviceMemory("no room"), True
    with pytest.raises(OutOfDeviceMemory):
        core.step()
    core.outputs.clear()
    core.add(second := request("x", prompt_of(9, 2)))

    core.run()

    assert core.tokens("x") == expected_tokens(second)
    core.assert_clean()


def test_case_14_an_abort_in_the_middle_of_a_chunked_prefill_frees_blocks_and_row() -> None:
    core = Core(max_num_batched_tokens=8)
    core.add(request("chunked", 40))
    core.step()
    core.step()

    (output,) = core.core.finish(["chunked"], "abort")
    core.run()

    assert output.finish_reason == "abort"
    core.assert_clean()


def test_case_09_a_step_without_tokens_reaches_the_runner() -> None:
    core = Core()
    core.add(request("a", max_tokens=1))
    core.step()
    assert core.runner.request_ids == {"a"}
    assert core.core.has_work()

    core.step()

    assert not core.runner.request_ids
    assert not core.core.has_work()


def test_when_the_workers_are_gone_everything_ends_with_the_reason() -> None:
    core = Core(max_num_seqs=1)
    core.add(request("runs"), request("waits"))
    core.step()
    died = WorkerDied("worker process 7 ended by signal 9")
    core.executor.fail_with = core.executor.failure = died

    with pytest.raises(WorkerDied, match="worker process 7"):
        core.step()

    for name in ("runs", "waits"):
        assert core.ends(name) == ["error"]
        assert "worker process 7 ended by signal 9" in core.message(name)
    assert not core.core.has_work()
    for call in (core.step, lambda: core.add(request("late"))):
        with pytest.raises(WorkerDied, match="build a new one: worker process 7 ended by signal 9"):
            call()


def test_workers_that_went_while_nothing_ran_are_noticed_by_the_next_request() -> None:
    core = Core()
    core.executor.failure = WorkerDied("worker process 7 ended by signal 9")
    with pytest.raises(WorkerDied, match="build a new one: worker process 7"):
        core.add(request("late"))
    assert core.core.shutdown() == []


def test_shutdown_aborts_what_is_open_and_releases_the_worker_once() -> None:
    core = Core(max_num_seqs=1)
    core.add(request("done", max_tokens=1))
    core.run()
    core.add(request("runs"), request("waits"))
    core.step()

    ended = core.core.shutdown()

    assert [(o.request_id, o.finish_reason) for o in ended] == [("runs", "abort"), ("waits", "abort")]
    assert core.core.shutdown() == []
    assert not core.core.has_work()
    for call in (core.core.step, lambda: core.core.add(request("late"))):
        with pytest.raises(EngineClosed, match="this engine was closed"):
            call()


def test_shutdown_after_a_failed_step() -> None:
    core = Core(max_num_seqs=1)
    core.add(request("lost"), request("waits"))
    core.executor.fail_with = DeviceLost("gone")
    with pytest.raises(DeviceLost):
        core.step()

    assert [o.request_id for o in core.core.shutdown()] == ["waits"]
    assert core.executor.num_shutdowns == 1


def test_an_interrupt_during_a_step_ends_its_requests() -> None:
    core = Core(max_num_seqs=1)
    core.add(request("stopped"), fine := request("fine"))
    core.executor.fail_with = KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt):
        core.step()

    core.run()
    assert core.ends("stopped") == ["error"]
    assert core.tokens("fine") == expected_tokens(fine)
    core.assert_clean()


def test_an_impossible_request_is_refused_as_it_is() -> None:
    core = Core()
    core.add(first := request("x"))

    with pytest.raises(InvalidRequest, match="is in use"):
        core.add(request("x"))

    core.run()
    assert core.tokens("x") == expected_tokens(first)
