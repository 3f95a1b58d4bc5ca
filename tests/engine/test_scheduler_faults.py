"""Schedulers that raise, build wrong steps or forget requests: what the engine core makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine.core_case import Core
from scheduler.harness import expected_tokens, request

from core_engine._ragged import Ragged
from core_engine.engine.messages import CoreOutput, CoreRequest
from core_engine.errors import ContractError, EngineClosed
from core_engine.scheduler.output import SchedulerOutput
from core_engine.scheduler.unified import UnifiedScheduler

Build = Callable[[], SchedulerOutput | None]


class Wrong(UnifiedScheduler):
    """Spoils its next ``num_wrong`` steps; a third party's scheduler with a bug."""

    num_wrong = 0
    spoil: Callable[[Build], Any]

    def schedule(self) -> Any:
        if not self.num_wrong:
            return super().schedule()
        self.num_wrong -= 1
        return self.spoil(super().schedule)


def too_far(build: Build) -> Any:
    step = build()
    return step and replace(step, num_computed_tokens=step.num_computed_tokens + 1)


def too_much(build: Build) -> Any:
    step = build()
    return step and replace(step, num_scheduled_tokens=step.num_scheduled_tokens + 99)


def ends_a_stranger(build: Build) -> Any:
    step = build()
    return step and replace(step, finished_request_ids=(*step.finished_request_ids, "stranger"))


def names_one_twice(build: Build) -> Any:
    step = build()
    return step and replace(step, request_ids=step.request_ids[:1] * len(step.request_ids))


def unreadable(build: Build) -> Any:
    step = build()
    return step and replace(step, num_scheduled_tokens=None)


def no_step(build: Build) -> None:
    return None


def nothing_at_all(build: Build) -> Any:
    step = build()
    return step and SchedulerOutput(
        step_id=step.step_id,
        request_ids=(),
        num_scheduled_tokens=step.num_scheduled_tokens[:0],
        num_computed_tokens=step.num_computed_tokens[:0],
        new_block_ids=(Ragged.from_rows([]),),
    )


def no_bug_is_impossible(build: Build) -> None:
    raise IndexError("a bug")


def wrong_core(spoil: Callable[..., Any], num_wrong: int, **settings: Any) -> Core:
    core = Core(scheduler=Wrong, **settings)
    core.scheduler.spoil, core.scheduler.num_wrong = spoil, num_wrong
    return core


@pytest.mark.parametrize("spoil", [too_far, unreadable])
def test_a_wrong_step_ends_what_it_names_and_never_reaches_the_runner(spoil: Callable[..., Any]) -> None:
    core = wrong_core(spoil, 0, max_num_seqs=2)
    core.add(request("a"), request("b"), waits := request("waits"))
    core.step()
    core.scheduler.num_wrong = 1

    with pytest.raises(ContractError, match="the scheduler built a"):
        core.step()

    assert [core.ends(name) for name in ("a", "b", "waits")] == [["error"], ["error"], []]
    core.run()
    assert core.tokens("waits") == expected_tokens(waits)
    core.assert_clean()


@pytest.mark.parametrize("spoil", [ends_a_stranger, names_one_twice, too_far])
def test_requests_that_come_and_go_with_a_wrong_step_end_once_and_leave_nothing(
    spoil: Callable[..., Any],
) -> None:
    core = wrong_core(spoil, 0)
    core.add(request("aborted"), request("running"))
    core.step()
    core.core.finish(["aborted"], "abort")
    core.add(request("new"))
    core.scheduler.num_wrong = 1
    with pytest.raises(ContractError):
        core.step()
    core.add(fine := request("fine"))

    core.run()

    assert [core.ends(name) for name in ("running", "new")] == [["error"], ["error"]]
    assert core.tokens("fine") == expected_tokens(fine)
    core.assert_clean()


def test_requests_that_a_wrong_step_leaves_out_end_with_it_too() -> None:
    core = wrong_core(names_one_twice, 0)
    core.add(request("a"), request("b"))
    core.step()
    core.scheduler.num_wrong = 1

    with pytest.raises(ContractError, match="stands in it twice"):
        core.step()

    assert [core.ends(name) for name in ("a", "b")] == [["error"], ["error"]]
    core.run()
    core.assert_clean()


def test_ids_of_a_wrong_step_can_be_used_again() -> None:
    core = wrong_core(too_far, 0)
    core.add(request("a"))
    core.step()
    core.scheduler.num_wrong = 1
    with pytest.raises(ContractError):
        core.step()
    core.outputs.clear()
    core.add(again := request("a", 9))

    core.run()

    assert core.tokens("a") == expected_tokens(again)
    core.assert_clean()


@pytest.mark.parametrize(
    ("spoil", "error", "text"),
    [
        (too_much, ContractError, "tokens, max_num_batched_tokens is 32"),
        (no_step, ContractError, "has work, but builds no step"),
        (nothing_at_all, ContractError, "computes nothing and tells nothing"),
        (no_bug_is_impossible, IndexError, "a bug"),
    ],
)
def test_a_scheduler_that_keeps_failing_is_given_up(
    spoil: Callable[..., Any], error: type[Exception], text: str
) -> None:
    core = wrong_core(spoil, 99)
    core.add(*[request(f"r{n}") for n in range(20)])

    for _ in range(3):
        with pytest.raises(error, match=text):
            core.step()

    assert all(core.ends(f"r{n}") == ["error"] for n in range(20))
    assert not core.core.has_work()
    with pytest.raises(EngineClosed, match=rf"the scheduler failed 3 times in a row.*{text}"):
        core.core.step()
    assert core.core.shutdown() == []


def test_faults_with_good_steps_between_do_not_add_up() -> None:
    core = wrong_core(no_bug_is_impossible, 0)
    core.add(only := request("only", max_tokens=12))
    for _ in range(5):
        core.scheduler.num_wrong = 2
        for _ in range(2):
            with pytest.raises(IndexError):
                core.step()
        core.step()

    core.run()

    assert core.tokens("only") == expected_tokens(only)
    core.assert_clean()


class Deaf(UnifiedScheduler):
    """Neither takes the request "odd" nor ends any."""

    def add(self, request: CoreRequest) -> None:
        if request.request_id == "odd":
            raise KeyError("odd")
        super().add(request)

    def finish(self, request_ids: Iterable[str], reason: str) -> list[CoreOutput]:
        if list(request_ids):
            raise RuntimeError("not now")
        return []


def test_a_scheduler_that_raises_over_one_request_refuses_that_one(caplog: pytest.LogCaptureFixture) -> None:
    core = Core(scheduler=Deaf)
    core.add(fine := request("fine"))

    with pytest.raises(ContractError, match="failed over request 'odd', which is refused: KeyError: odd"):
        core.add(request("odd"))

    core.run()
    assert core.tokens("fine") == expected_tokens(fine)


class Forgetful(UnifiedScheduler):
    """Knows nothing of what was added."""

    def add(self, request: CoreRequest) -> None: ...


def test_requests_that_a_scheduler_forgets_do_not_wait_for_ever() -> None:
    core = Core(scheduler=Forgetful)
    core.add(request("a"))

    for _ in range(3):
        with pytest.raises(ContractError, match="has work, but builds no step"):
            core.step()

    assert core.ends("a") == ["error"]


def test_a_request_ends_though_the_scheduler_fails_to_end_it(caplog: pytest.LogCaptureFixture) -> None:
    core = Core(scheduler=Deaf)
    core.add(request("gone"), fine := request("fine"))
    core.step()

    (end,) = core.core.finish(["gone"], "abort")

    assert (end.request_id, end.finish_reason) == ("gone", "abort")
    assert "RuntimeError: not now" in caplog.text
    core.run()
    assert core.tokens("fine") == expected_tokens(fine)
    assert core.core.shutdown() == []


@pytest.mark.parametrize("answer", [None, ["text"]])
def test_results_that_a_scheduler_takes_wrongly_end_their_requests(answer: Any) -> None:
    core = Core(max_num_seqs=1)
    core.add(request("a"), waits := request("waits"))
    update = core.scheduler.update

    def wrong(*arguments: Any) -> Any:
        core.scheduler.update = update
        update(*arguments)
        return answer

    core.scheduler.update = wrong
    with pytest.raises((TypeError, AttributeError)):
        core.step()

    core.run()
    assert core.ends("a") == ["error"]
    assert core.tokens("waits") == expected_tokens(waits)
    core.assert_clean()


def test_an_interrupt_before_a_step_is_checked_loses_no_news() -> None:
    core = Core()
    core.add(request("ended"), request("running"))
    core.step()
    core.core.finish(["ended"], "abort")
    check = core.core._checker.check

    def interrupted(step: SchedulerOutput) -> None:
        core.core._checker.check = check  # type: ignore[method-assign]
        raise KeyboardInterrupt

    core.core._checker.check = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        core.step()

    core.run()
    assert core.ends("running") == ["error"]
    core.assert_clean()


def test_shutdown_ends_requests_that_the_scheduler_does_not_end() -> None:
    core = Core(scheduler=Deaf)
    core.add(request("a"))

    ended = core.core.shutdown()

    assert [(o.request_id, o.finish_reason) for o in ended] == [("a", "abort")]


def test_results_that_do_not_answer_the_step_end_its_requests() -> None:
    core = Core(max_num_seqs=1)
    core.add(request("a"), waits := request("waits"))
    answer = core.runner._output

    def mixed_up(step_id: int, sampled: Any, prompt_logprobs: Any) -> Any:
        core.runner._output = answer
        empty = Ragged(np.zeros(0, dtype=np.int32), np.zeros(1, dtype=np.int32))
        return replace(answer(step_id, sampled, prompt_logprobs), sampled_token_ids=empty)

    core.runner._output = mixed_up
    with pytest.raises(ContractError, match="0 rows of token ids for 1 requests"):
        core.step()

    core.run()
    assert core.ends("a") == ["error"]
    assert core.tokens("waits") == expected_tokens(waits)
    core.assert_clean()
