from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pytest
from scheduler.harness import Engine, both_schedulers, expected_tokens, kv_config, request

from core_engine.engine.messages import CoreRequest
from core_engine.errors import ContractError
from core_engine.scheduler.policies import (
    POLICIES,
    SECONDS_PER_PROMPT_TOKEN,
    FirstComeFirstServed,
    OrderKey,
    Policy,
    PriorityFirst,
    ShortestPromptFirst,
)
from core_engine.scheduler.request import RequestState


class Chooser(FirstComeFirstServed):
    """First come, first served, with a victim of the test's choice."""

    def __init__(self, choose: Callable[[Sequence[RequestState]], int]) -> None:
        self.choose = choose

    def victim(self, running: Sequence[RequestState]) -> int:
        return self.choose(running)


def crowded(policy: Policy, *, depth: int = 1) -> Engine:
    """Three requests that outgrow a pool of 12 blocks together."""
    engine = Engine(kv_config(num_blocks=13, max_model_len=48), depth=depth, max_num_batched_tokens=48)
    engine.scheduler.policy = policy
    engine.add(*[request(f"r{n}", 15, max_tokens=12) for n in range(3)])
    return engine


def preempted(engine: Engine) -> list[str]:
    return [name for step in engine.steps for name in step.preempted_request_ids]


def assert_everyone_got_their_tokens(engine: Engine) -> None:
    for number in range(3):
        each = request(f"r{number}", 15, max_tokens=12)
        assert engine.tokens[each.request_id] == expected_tokens(each, 48)
    engine.assert_clean()


def test_first_come_first_served_ignores_priority() -> None:
    policy = FirstComeFirstServed()
    early, late = request("a", priority=9, arrival_s=1.0), request("b", priority=0, arrival_s=2.0)

    assert policy.order(early, 1) < policy.order(late, 0)


def test_smaller_priority_runs_first() -> None:
    policy = PriorityFirst()
    early, late = request("a", priority=9, arrival_s=1.0), request("b", priority=0, arrival_s=2.0)

    assert policy.order(late, 1) < policy.order(early, 0)


def test_a_shorter_prompt_overtakes_a_longer_one() -> None:
    policy = ShortestPromptFirst()
    long, short = request("long", 500, arrival_s=1.0), request("short", 5, arrival_s=1.1)

    assert policy.order(short, 1) < policy.order(long, 0)


def test_a_long_prompt_is_overtaken_only_for_as_long_as_its_tokens_count() -> None:
    policy = ShortestPromptFirst()
    long = request("long", 500, arrival_s=1.0)
    lead_s = (500 - 5) * SECONDS_PER_PROMPT_TOKEN
    in_time = request("in-time", 5, arrival_s=1.0 + lead_s - 0.001)
    late = request("late", 5, arrival_s=1.0 + lead_s + 0.001)

    assert policy.order(in_time, 1) < policy.order(long, 0) < policy.order(late, 2)


@pytest.mark.parametrize("name", POLICIES)
def test_requests_that_are_equal_in_all_else_are_ordered_by_sequence(name: str) -> None:
    policy = POLICIES[name]()

    assert policy.order(request("a"), 0) < policy.order(request("a"), 1)


def test_the_order_decides_who_comes_in() -> None:
    engine = Engine(scheduling_policy="shortest-prompt-first", max_num_seqs=1)
    engine.add(request("long", 30), request("middle", 20), request("short", 10))

    engine.run()

    started = [new.request_id for step in engine.steps for new in step.new_requests]
    assert started == ["short", "middle", "long"]


@pytest.mark.parametrize("depth", [1, 2])
@both_schedulers
@pytest.mark.parametrize("choose", [lambda running: 1, lambda running: len(running) // 2])
def test_any_row_but_the_first_may_be_the_victim(
    choose: Callable[[Sequence[RequestState]], int], depth: int
) -> None:
    policy = Chooser(lambda running: choose(running) if len(running) > 1 else 0)
    engine = crowded(policy, depth=depth)

    engine.run()

    assert preempted(engine)[0] == "r1"
    assert "r0" not in preempted(engine)
    assert_everyone_got_their_tokens(engine)


def test_a_victim_gives_back_what_it_gained_in_the_same_step() -> None:
    # All three ask for a block in one step and two are free: r1 has got its block when r2 asks.
    engine = Engine(kv_config(num_blocks=12, max_model_len=48), max_num_batched_tokens=48)
    engine.scheduler.policy = Chooser(lambda running: min(1, len(running) - 1))
    requests = [request(f"r{n}", 12, max_tokens=12) for n in range(3)]
    engine.add(*requests)
    engine.step()

    step = engine.step()

    assert step is not None
    assert step.preempted_request_ids == ("r1",)
    assert step.request_ids == ("r0", "r2")
    engine.run()
    assert [engine.tokens[r.request_id] for r in requests] == [expected_tokens(r, 48) for r in requests]
    engine.assert_clean()


def test_a_victim_may_be_chosen_by_what_it_would_lose() -> None:
    seen: list[list[int]] = []

    def choose(running: Sequence[RequestState]) -> int:
        seen.append([len(each.tokens) for each in running])
        return min(range(1, len(running)), key=lambda index: len(running[index].tokens))

    engine = crowded(Chooser(choose))

    engine.run()

    assert seen
    assert_everyone_got_their_tokens(engine)


def fail(running: Sequence[RequestState]) -> int:
    raise ZeroDivisionError("by zero")


@pytest.mark.parametrize(
    ("choose", "told"),
    [
        (lambda running: 0, "returned 0, and 1 to 2 are possible"),
        (lambda running: 3, "returned 3, and 1 to 2"),
        (lambda running: -1, "returned -1"),
        (lambda running: None, "returned None"),
        (fail, "raised ZeroDivisionError: by zero"),
    ],
)
def test_an_impossible_victim_is_told_and_the_last_in_order_taken(
    choose: Callable[[Sequence[RequestState]], int], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = crowded(Chooser(choose))

    with caplog.at_level(logging.WARNING):
        engine.run()

    assert preempted(engine)[0] == "r2"
    assert f"Chooser.victim {told}" in caplog.messages[0]
    assert_everyone_got_their_tokens(engine)


@pytest.mark.parametrize("key", [None, 3, (1.0, 2.0), (0, float("nan"), 0), ("a", 0, 0), (0, 0, 7)])
def test_a_key_that_cannot_be_ordered_refuses_the_request_and_nothing_else(key: object) -> None:
    class Broken(Policy):
        def order(self, request: CoreRequest, sequence: int) -> OrderKey:
            return key  # type: ignore[return-value]

    engine = Engine()
    engine.scheduler.policy = Broken()

    with pytest.raises(ContractError, match=r"Broken.order must return \(number, number, sequence\)"):
        engine.add(request("a"))

    assert not engine.scheduler.has_work()
    engine.scheduler.policy = FirstComeFirstServed()
    engine.add(fine := request("a"))
    engine.run()
    assert engine.tokens["a"] == expected_tokens(fine)
