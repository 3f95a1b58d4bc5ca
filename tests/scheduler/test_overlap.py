"""Steps may be scheduled before the results of earlier ones are known."""

from __future__ import annotations

import pytest
from scheduler.harness import MODEL, Engine, both_schedulers, expected_tokens, kv_config, prompt_of, request

from core_engine.errors import ContractError


def first_token(prompt: list[int]) -> int:
    return MODEL.generate(prompt, request("x").params, 1)[0]


@both_schedulers
def test_a_second_step_is_scheduled_before_the_first_is_updated() -> None:
    engine = Engine()
    only = request("only", 6, max_tokens=4)
    engine.add(only)

    first, second = engine.schedule(), engine.schedule()

    assert first is not None
    assert second is not None
    assert second.num_computed_tokens.tolist() == [6]
    assert second.num_scheduled_tokens.tolist() == [1]
    engine.run()
    assert engine.tokens["only"] == expected_tokens(only)
    engine.assert_clean()


@both_schedulers
def test_no_step_goes_beyond_the_last_token() -> None:
    engine = Engine()
    engine.add(request("only", 6, max_tokens=2))

    steps = [engine.schedule() for _ in range(4)]

    assert [step is not None for step in steps] == [True, True, False, False]
    engine.update()
    engine.update()
    assert engine.finish_reason("only") == "length"


@both_schedulers
def test_what_was_computed_beyond_a_stop_token_is_dropped() -> None:
    engine = Engine()
    prompt = prompt_of(6)
    engine.add(request("a", prompt, max_tokens=9, eos=(first_token(prompt),)))
    engine.schedule()
    engine.schedule()

    ended = engine.update()
    late = engine.update()

    assert [output.finish_reason for output in ended] == ["stop"]
    assert late == []
    engine.run()
    engine.assert_clean()


@both_schedulers
def test_blocks_of_a_request_that_ended_wait_for_its_last_step_in_flight() -> None:
    engine = Engine()
    prompt = prompt_of(6)
    engine.add(request("a", prompt, max_tokens=9, eos=(first_token(prompt),)))
    engine.schedule()
    engine.schedule()

    engine.update()
    assert engine.kv.pool.num_free < engine.kv.pool.num_usable

    engine.update()
    assert engine.kv.pool.num_free == engine.kv.pool.num_usable


@both_schedulers
def test_an_id_is_reused_while_steps_of_its_former_holder_are_in_flight() -> None:
    engine = Engine()
    engine.add(request("a", prompt_of(6, 1)))
    engine.schedule()
    engine.schedule()
    engine.finish("a")
    engine.tokens.clear()
    second = request("a", prompt_of(9, 2))
    engine.add(second)

    engine.schedule()
    engine.run()

    assert engine.tokens["a"] == expected_tokens(second)
    engine.assert_clean()


@both_schedulers
def test_tokens_in_flight_of_a_preempted_request_count() -> None:
    engine = Engine(kv_config(num_blocks=9, max_model_len=32), depth=3)
    first, second = request("first", 12, max_tokens=16), request("second", 12, max_tokens=16)
    engine.add(first, second)
    while not (engine.steps and engine.steps[-1].preempted_request_ids):
        engine.step()
    assert len(engine.in_flight) >= 2

    engine.run()

    assert engine.tokens["first"] == expected_tokens(first)
    assert engine.tokens["second"] == expected_tokens(second)
    engine.assert_clean()


@both_schedulers
def test_one_preemption_suffices_while_its_blocks_are_on_their_way() -> None:
    engine = Engine(kv_config(num_blocks=13, max_model_len=48), depth=2)
    engine.add(*[request(f"r{n}", 15, max_tokens=12) for n in range(3)])

    engine.run()

    assert all(len(step.preempted_request_ids) <= 1 for step in engine.steps)


@both_schedulers
def test_updates_come_in_the_order_of_the_steps() -> None:
    engine = Engine()
    engine.add(request("a"))
    engine.schedule()
    engine.schedule()
    engine.update()
    engine.update()
    step = engine.steps[0]

    with pytest.raises(ContractError, match="step 0 is updated, but it is not in flight"):
        engine.scheduler.update(step, engine.runner.execute_model(engine.scheduler.schedule()).result())
