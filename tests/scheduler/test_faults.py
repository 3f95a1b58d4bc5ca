"""A request whose model gives no token, or whose step fails, ends alone and leaves nothing behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scheduler.harness import Engine, Speechless, expected_tokens, kv_config, prompt_of, request

from core_engine._ragged import Ragged
from core_engine.worker.output import LogprobRows, ModelRunnerOutput


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_request_without_a_token_ends_with_error_and_the_others_go_on(depth: int) -> None:
    engine = Engine(model=Speechless(position=9), depth=depth)
    broken, fine = request("broken", 6, seed=13), request("fine", 6)
    engine.add(broken, fine)

    engine.run()

    assert engine.finish_reason("broken") == "error"
    assert "the model gave no token: its logits are not numbers" in str(engine.outputs["broken"][-1].message)
    assert engine.tokens["broken"] == expected_tokens(broken)[:3]
    assert engine.tokens["fine"] == expected_tokens(fine)
    engine.assert_clean()


def test_no_block_of_a_request_without_a_token_is_found_in_the_cache() -> None:
    # Three chunks of a prompt: two are committed before the third shows that something is wrong.
    engine = Engine(model=Speechless(position=0), max_num_batched_tokens=8)
    prompt = prompt_of(20)
    engine.add(request("broken", prompt, seed=13))
    engine.run()
    engine.add(again := request("again", prompt))

    step = engine.step()

    assert step is not None
    assert step.num_computed_tokens.tolist() == [0]
    engine.run()
    assert engine.tokens["again"] == expected_tokens(again)


def test_blocks_that_a_request_without_a_token_shares_are_not_found_any_more_either() -> None:
    engine = Engine(model=Speechless(position=0))
    prompt = prompt_of(20)
    engine.add(sharing := request("sharing", prompt, max_tokens=30))
    engine.step()
    engine.add(request("broken", prompt, seed=13))
    engine.step()
    assert engine.finish_reason("broken") == "error"
    engine.add(request("again", prompt))

    step = engine.step()

    assert step is not None
    assert step.num_computed_tokens[step.request_ids.index("again")] == 0
    engine.run()
    assert engine.tokens["sharing"] == expected_tokens(sharing)
    engine.assert_clean()


def test_tokens_before_the_missing_one_count() -> None:
    engine = Engine()
    engine.add(request("a", 6, logprobs=1), request("b", 6, logprobs=1))
    step = engine.schedule()
    assert step is not None
    engine.in_flight.clear()
    ids = np.arange(8, dtype=np.int32).reshape(4, 2)
    logprobs = LogprobRows(token_ids=ids, logprobs=ids.astype(np.float32), ranks=np.arange(4, dtype=np.int32))

    a, b = engine.scheduler.update(
        step,
        ModelRunnerOutput(
            step_id=0,
            request_ids=("a", "b"),
            sampled_token_ids=Ragged.from_rows([[4, -1, 5], [6]]),
            logprobs=logprobs,
        ),
    )

    assert (a.new_token_ids, a.finish_reason) == ((4,), "error")
    assert a.logprobs is not None
    assert a.logprobs.token_ids.tolist() == [[0, 1]]
    assert (b.new_token_ids, b.finish_reason) == ((6,), None)
    assert b.logprobs is not None
    assert b.logprobs.token_ids.tolist() == [[6, 7]]


def test_a_preempted_request_whose_late_result_is_no_token_ends_with_error() -> None:
    engine = Engine(kv_config(num_blocks=9, max_model_len=32), depth=3)
    engine.add(request("first", 12, max_tokens=16), request("second", 12, max_tokens=16))
    while not (engine.steps and engine.steps[-1].preempted_request_ids):
        engine.step()
    step, output = engine.in_flight[0]
    values = output.sampled_token_ids.values.copy()
    values[step.request_ids.index("second")] = -1
    sampled = Ragged(values, output.sampled_token_ids.offsets)
    engine.in_flight[0] = (
        step,
        ModelRunnerOutput(step_id=step.step_id, request_ids=output.request_ids, sampled_token_ids=sampled),
    )

    engine.run()

    assert engine.finish_reason("second") == "error"
    assert engine.finish_reason("first") == "length"
    engine.assert_clean()


def test_what_a_failed_step_may_have_overwritten_is_not_found_in_the_cache() -> None:
    engine = Engine(max_num_batched_tokens=8)
    prompt = prompt_of(20)
    engine.add(request("lost", prompt))
    engine.step()
    engine.schedule()
    engine.in_flight.clear()  # the second chunk's step failed
    engine.finish("lost", reason="error")
    engine.add(again := request("again", prompt))

    step = engine.step()

    assert step is not None
    assert step.num_computed_tokens.tolist() == [0]
    engine.run()
    assert engine.tokens["again"] == expected_tokens(again)
    engine.assert_clean()


def test_steps_that_fail_one_after_another_keep_no_blocks() -> None:
    # Each of three prompts takes the whole pool: without its blocks back no other could ever run.
    engine = Engine(kv_config(num_blocks=9, max_model_len=32))
    for number in range(3):
        engine.add(request(f"lost-{number}", 28))
        step = engine.schedule()
        assert step is not None
        engine.in_flight.clear()
        (output,) = engine.collect(engine.scheduler.abandon(step))
        assert output.finish_reason == "error"
    engine.add(fine := request("fine", 28, max_tokens=3))

    engine.run()

    assert engine.tokens["fine"] == expected_tokens(fine, 32)
    engine.assert_clean()


def test_a_failed_step_between_others_in_flight_ends_its_requests_when_theirs_are_known() -> None:
    engine = Engine(depth=3)
    engine.add(request("lost", 6))
    engine.schedule()
    engine.add(fine := request("fine", 6))
    engine.schedule()
    engine.schedule()
    step, _ = engine.in_flight.popleft()  # only "lost" is in it

    (output,) = engine.collect(engine.scheduler.abandon(step))
    engine.run()

    assert output.request_id == "lost"
    assert engine.tokens["fine"] == expected_tokens(fine)
    engine.assert_clean()


def test_a_policy_that_raises_refuses_that_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    order = engine.scheduler.policy.order

    def picky(new: Any, sequence: int) -> Any:
        if new.request_id == "odd":
            raise KeyError("odd")
        return order(new, sequence)

    monkeypatch.setattr(engine.scheduler.policy, "order", picky)
    engine.add(even := request("even"))

    with pytest.raises(KeyError):
        engine.add(request("odd"))

    engine.run()
    assert engine.tokens["even"] == expected_tokens(even)
    engine.assert_clean()
