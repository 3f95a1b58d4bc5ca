"""The scheduling and cache faults that real engines had, each as one test."""

from __future__ import annotations

import numpy as np
import pytest
from scheduler.harness import (
    EOS,
    MODEL,
    Engine,
    both_schedulers,
    expected_tokens,
    kv_config,
    prompt_of,
    request,
)

from core_engine._ragged import Ragged
from core_engine.errors import InvalidRequest
from core_engine.worker.output import ModelRunnerOutput


@both_schedulers
def test_case_01_a_prompt_larger_than_the_pool_is_refused_with_the_numbers() -> None:
    engine = Engine(kv_config(num_blocks=4, max_model_len=64))

    with pytest.raises(InvalidRequest, match=r"prompt has 13 tokens.*whole KV cache holds 12") as error:
        engine.add(request("big", 13))

    assert error.value.param == "prompt"
    assert not engine.scheduler.has_work()


@both_schedulers
def test_case_02_a_lone_decode_that_outgrows_the_pool_ends_with_length_and_a_message() -> None:
    engine = Engine(kv_config(num_blocks=4, max_model_len=64))
    lone = request("lone", 6, max_tokens=50)
    engine.add(lone)

    engine.run()

    # 12 tokens fit; a 13th may be sampled, as the last token needs no place in the cache.
    assert engine.finish_reason("lone") == "length"
    assert engine.tokens["lone"] == expected_tokens(lone)[:7]
    assert "cut short at 13 tokens: the KV cache holds 12" in str(engine.outputs["lone"][-1].message)
    engine.assert_clean()
    engine.add(again := request("again", 3))
    engine.run()
    assert engine.tokens["again"] == expected_tokens(again)


@both_schedulers
def test_case_03_equal_priorities_run_in_order_of_arrival() -> None:
    engine = Engine(scheduling_policy="priority", max_num_seqs=1)
    children = [request(f"child-{n}", prompt_of(6), stream=n, priority=1) for n in range(4)]
    engine.add(*children, request("urgent", 6, priority=0))

    engine.run()

    started = [new.request_id for step in engine.steps for new in step.new_requests]
    assert started == ["urgent", "child-0", "child-1", "child-2", "child-3"]


def test_case_04_a_preempted_request_resumes_on_its_own_freed_blocks() -> None:
    # 8 blocks of 4: two requests of 12 prompt tokens outgrow them together.
    engine = Engine(kv_config(num_blocks=9, max_model_len=32))
    first, second = request("first", 12, max_tokens=16), request("second", 12, max_tokens=16)
    engine.add(first, second)

    engine.run()

    resumed = [step for step in engine.steps if "second" in step.resumed_request_ids]
    assert resumed
    row = resumed[0].request_ids.index("second")
    assert resumed[0].num_computed_tokens[row] > 0
    assert engine.tokens["first"] == expected_tokens(first)
    assert engine.tokens["second"] == expected_tokens(second)
    engine.assert_clean()


@both_schedulers
@pytest.mark.parametrize("depth", [1, 2])
def test_case_05_a_reset_while_a_request_is_preempted_loses_and_repeats_no_token(depth: int) -> None:
    engine = Engine(kv_config(num_blocks=9, max_model_len=32), depth=depth)
    first, second = request("first", 12, max_tokens=16), request("second", 12, max_tokens=16)
    engine.add(first, second)
    while not (engine.steps and engine.steps[-1].preempted_request_ids):
        engine.step()

    assert not engine.scheduler.reset_prefix_cache()
    engine.run()

    assert engine.tokens["first"] == expected_tokens(first)
    assert engine.tokens["second"] == expected_tokens(second)
    engine.assert_clean()


@both_schedulers
def test_case_06_a_prompt_one_short_of_max_model_len_gets_one_token() -> None:
    engine = Engine(kv_config(max_model_len=16))
    full = request("full", 15, max_tokens=8)
    engine.add(full)

    engine.run()

    assert engine.tokens["full"] == expected_tokens(full)[:1]
    assert engine.finish_reason("full") == "length"


@both_schedulers
def test_case_06_a_prompt_of_max_model_len_is_refused() -> None:
    engine = Engine(kv_config(max_model_len=16))

    with pytest.raises(InvalidRequest, match=r"prompt has 16 tokens; max_model_len 16 leaves room for 15"):
        engine.add(request("over", 16))


def test_case_07_short_prompts_do_not_wait_for_a_long_one() -> None:
    engine = Engine(kv_config(num_blocks=300, max_model_len=1024), max_num_batched_tokens=32)
    long = request("long", 1000, max_tokens=2)
    engine.add(long)
    engine.step()
    shorts = [request(f"short-{n}", 10, max_tokens=2) for n in range(3)]
    engine.add(*shorts)

    first_token_step = {}
    for number in range(60):
        engine.step()
        for short in shorts:
            if engine.tokens[short.request_id]:
                first_token_step.setdefault(short.request_id, number)

    # Half of 32 tokens a step goes to the short ones: 30 tokens take two steps.
    assert first_token_step == {"short-0": 0, "short-1": 1, "short-2": 1}
    engine.run()
    assert engine.tokens["long"] == expected_tokens(long, 1024)


def test_case_07_a_second_long_prompt_does_not_hold_back_the_short_one_behind_it() -> None:
    engine = Engine(kv_config(num_blocks=600, max_model_len=1024), max_num_batched_tokens=32)
    engine.add(request("long-0", 1000), request("long-1", 1000), request("short", 10))

    first = engine.step()

    assert first is not None
    assert set(first.request_ids) == {"long-0", "short"}


def test_case_07_a_long_prompt_alone_gets_the_whole_budget() -> None:
    engine = Engine(kv_config(num_blocks=300, max_model_len=1024), max_num_batched_tokens=32)
    engine.add(request("long", 1000))

    assert [engine.step().total_num_tokens for _ in range(3)] == [32, 32, 32]


def test_case_07_a_long_prompt_keeps_the_budget_when_no_short_one_can_come_in() -> None:
    seats = Engine(kv_config(num_blocks=300, max_model_len=1024), max_num_batched_tokens=32, max_num_seqs=1)
    seats.add(request("long", 1000), request("no-seat", 20))
    blocks = Engine(kv_config(num_blocks=251, max_model_len=1024), max_num_batched_tokens=32)
    blocks.add(request("holder", 31, max_tokens=40))
    blocks.step()
    blocks.add(request("long", 960), request("no-block", 20))

    assert [seats.step().total_num_tokens for _ in range(3)] == [32, 32, 32]
    assert [blocks.step().total_num_tokens for _ in range(3)] == [32, 32, 32]


def test_case_07_a_long_prompt_leaves_tokens_only_to_as_many_short_ones_as_have_seats() -> None:
    engine = Engine(kv_config(num_blocks=300, max_model_len=1024), max_num_batched_tokens=32, max_num_seqs=2)
    engine.add(request("long", 1000), request("short-0", 5), request("short-1", 5))

    step = engine.step()

    assert step is not None
    assert step.request_ids == ("long", "short-0")
    assert step.num_scheduled_tokens.tolist() == [27, 5]


def test_case_08_a_fully_cached_prompt_still_computes_a_token() -> None:
    engine = Engine()
    prompt = prompt_of(8)  # two whole blocks
    engine.add(request("cold", prompt))
    engine.run()
    warm = request("warm", prompt)
    engine.add(warm)

    step = engine.step()

    assert step is not None
    assert step.num_computed_tokens.tolist() == [4]
    assert step.num_scheduled_tokens.tolist() == [4]
    engine.run()
    assert engine.tokens["warm"] == expected_tokens(warm)


@both_schedulers
def test_case_09_the_runner_is_told_of_an_end_in_a_step_without_tokens() -> None:
    engine = Engine()
    engine.add(request("a", max_tokens=1))
    engine.step()
    assert engine.runner.request_ids == {"a"}
    assert engine.scheduler.has_work()

    step = engine.step()

    assert step is not None
    assert step.request_ids == ()
    assert step.finished_request_ids == ("a",)
    assert not engine.scheduler.has_work()
    engine.assert_clean()


@both_schedulers
def test_case_09_an_id_can_be_reused_at_once() -> None:
    engine = Engine()
    engine.add(request("a", prompt_of(6, 1)))
    engine.step()
    engine.finish("a")
    engine.tokens.clear()
    second = request("a", prompt_of(9, 2))

    engine.add(second)
    engine.run()

    assert engine.tokens["a"] == expected_tokens(second)
    engine.assert_clean()


@both_schedulers
def test_case_10_a_prompt_that_does_not_fit_yet_lets_the_next_in_once_blocks_are_free() -> None:
    engine = Engine(kv_config(num_blocks=9, max_model_len=32))
    requests = [request(f"r{n}", 28, max_tokens=3) for n in range(4)]
    engine.add(*requests)

    engine.run()

    assert all(engine.tokens[r.request_id] == expected_tokens(r, 32) for r in requests)
    engine.assert_clean()


def test_case_13_ids_that_were_sampled_but_not_computed_never_enter_the_cache() -> None:
    engine = Engine()
    prompt = prompt_of(6)
    engine.add(request("a", prompt, max_tokens=40))
    step = engine.schedule()
    assert step is not None
    # Six ids at once, as after verified drafts: of the 12 tokens only 6 are computed.
    accepted = [11, 12, 13, 14, 15, 16]
    engine.in_flight.clear()
    output = ModelRunnerOutput(
        step_id=step.step_id, request_ids=("a",), sampled_token_ids=Ragged.from_rows([accepted])
    )
    engine.scheduler.update(step, output)
    engine.scheduler.finish(["a"], "abort")
    engine.scheduler.add(request("b", [*prompt, *accepted, 1]))

    following = engine.scheduler.schedule()

    assert following is not None
    assert following.num_computed_tokens.tolist() == [4]


@both_schedulers
def test_case_13_no_request_owns_the_null_block() -> None:
    engine = Engine(kv_config(num_blocks=12), max_num_seqs=4)
    engine.add(*[request(f"r{n}", 9, max_tokens=20) for n in range(6)])

    engine.run()

    assert all((step.new_block_ids[0].values > 0).all() for step in engine.steps)


def test_case_14_an_abort_in_the_middle_of_a_chunked_prefill_frees_everything() -> None:
    engine = Engine(max_num_batched_tokens=8)
    engine.add(request("chunked", 40))
    engine.step()
    engine.step()

    (output,) = engine.finish("chunked")
    engine.run()

    assert output.finish_reason == "abort"
    engine.assert_clean()


@both_schedulers
def test_case_15_what_freed_blocks_held_is_never_read() -> None:
    # The fake runner checks that each position that counts as computed stands in its block; here
    # every block that no request holds is overwritten before each step.
    engine = Engine(kv_config(num_blocks=12, max_model_len=40), max_num_seqs=4, enable_prefix_caching=False)
    requests = [request(f"r{n}", 5 + 3 * n, max_tokens=20) for n in range(6)]
    engine.add(*requests)
    slots = engine.runner.pool.slots
    while engine.scheduler.has_work():
        slots[list(engine.kv.pool._free)] = np.uint64(0xDEAD)
        engine.step()

    assert all(engine.tokens[r.request_id] == expected_tokens(r, 40) for r in requests)


def test_case_16_the_head_of_a_prompt_outlives_its_tail_in_the_cache() -> None:
    engine = Engine(kv_config(num_blocks=9, max_model_len=36))
    prompt = prompt_of(16, 1)
    engine.add(request("a", prompt, max_tokens=1))
    engine.run()
    engine.add(request("b", prompt_of(22, 2), max_tokens=1))  # takes 6 of 8 blocks
    engine.run()
    engine.add(request("again", prompt, max_tokens=1))

    step = engine.step()

    assert step is not None
    assert step.num_computed_tokens.tolist() == [8]


@both_schedulers
def test_case_17_prompt_logprobs_are_the_same_with_a_warm_cache() -> None:
    engine = Engine()
    prompt = prompt_of(12)
    for name in ("cold", "warm"):
        engine.add(request(name, prompt, max_tokens=1, prompt_logprobs=1))
        engine.run()

    cold, warm = (engine.outputs[name][0].prompt_logprobs for name in ("cold", "warm"))

    assert cold is not None
    assert warm is not None
    assert cold.token_ids[:, 0].tolist() == prompt[1:]
    assert np.array_equal(cold.token_ids, warm.token_ids)
    assert np.array_equal(cold.logprobs, warm.logprobs)
    assert engine.outputs["warm"][0].num_cached_tokens == 0


@both_schedulers
def test_case_21_no_stop_token_counts_before_min_tokens() -> None:
    engine = Engine()
    prompt, answer = prompt_of(6), MODEL.generate(prompt_of(6), request("x").params, 3)
    engine.add(request("a", prompt, eos=(answer[0],), stop_token_ids=(answer[1],), min_tokens=3))
    step = engine.schedule()
    assert step is not None
    engine.in_flight.clear()
    rows = Ragged.from_rows([[answer[0], answer[1], 9, answer[1], 9]])
    (output,) = engine.scheduler.update(
        step, ModelRunnerOutput(step_id=step.step_id, request_ids=("a",), sampled_token_ids=rows)
    )

    assert output.new_token_ids == (answer[0], answer[1], 9, answer[1])
    assert output.finish_reason == "stop"
    assert output.stop_reason == answer[1]


@both_schedulers
def test_an_end_of_sequence_id_ends_a_request() -> None:
    engine = Engine(kv_config(num_blocks=200, max_model_len=600))
    talker = request("talker", 6, max_tokens=500, eos=(EOS,))
    engine.add(talker)

    engine.run()

    assert engine.tokens["talker"] == expected_tokens(talker, 600)
    assert engine.tokens["talker"][-1] == EOS
    assert engine.finish_reason("talker") == "stop"
    assert engine.outputs["talker"][-1].stop_reason is None
