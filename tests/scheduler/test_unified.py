from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scheduler.harness import ALL, Engine, both_schedulers, expected_tokens, kv_config, prompt_of, request

from core_engine._ragged import Ragged
from core_engine.errors import ContractError, InvalidRequest
from core_engine.worker.output import LogprobRows, ModelRunnerOutput


@both_schedulers
def test_a_request_gets_exactly_its_tokens() -> None:
    engine = Engine()
    only = request("only", 10, max_tokens=9)
    engine.add(only)

    engine.run()

    assert engine.tokens["only"] == expected_tokens(only)
    assert engine.finish_reason("only") == "length"
    engine.assert_clean()


def test_decodes_and_prompts_share_a_step() -> None:
    engine = Engine()
    engine.add(request("early", 5))
    engine.step()
    engine.add(request("late", 6))

    step = engine.step()

    assert step is not None
    assert step.request_ids == ("early", "late")
    assert step.num_scheduled_tokens.tolist() == [1, 6]


def test_a_long_prompt_is_computed_over_several_steps() -> None:
    engine = Engine(max_num_batched_tokens=8)
    chunked = request("chunked", 20, max_tokens=3)
    engine.add(chunked)

    engine.run()

    prefill = engine.steps[:3]
    assert [step.num_scheduled_tokens.tolist() for step in prefill] == [[8], [8], [4]]
    assert [step.num_computed_tokens.tolist() for step in prefill] == [[0], [8], [16]]
    assert engine.tokens["chunked"] == expected_tokens(chunked)


def test_decodes_come_before_prompts_when_the_budget_is_short() -> None:
    engine = Engine(max_num_batched_tokens=8)
    engine.add(request("slow", 30), *[request(f"r{n}", 1) for n in range(3)])
    engine.step()
    engine.step()

    step = engine.step()

    assert step is not None
    scheduled = dict(zip(step.request_ids, step.num_scheduled_tokens.tolist(), strict=True))
    assert [scheduled[f"r{n}"] for n in range(3)] == [1, 1, 1]
    assert scheduled["slow"] == 5


def test_without_chunked_prefill_a_prompt_waits_until_it_fits_whole() -> None:
    engine = Engine(kv_config(max_model_len=32), max_num_batched_tokens=32, enable_chunked_prefill=False)
    requests = [request(f"r{n}", 20, max_tokens=4) for n in range(3)]
    engine.add(*requests)

    engine.run()

    assert [step.num_scheduled_tokens.tolist() for step in engine.steps[:3]] == [[20], [1, 20], [1, 1, 20]]
    assert all(engine.tokens[r.request_id] == expected_tokens(r, 32) for r in requests)


def test_an_equal_prefix_is_computed_once() -> None:
    engine = Engine()
    prefix = prompt_of(16)
    engine.add(request("first", [*prefix, 1, 2]))
    engine.run()
    engine.add(request("second", [*prefix, 3, 4]))

    step = engine.step()

    assert step is not None
    assert step.num_computed_tokens.tolist() == [16]
    assert step.num_scheduled_tokens.tolist() == [2]
    assert engine.outputs["second"][0].num_cached_tokens == 16
    stats = engine.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (36, 16)


def test_blocks_of_a_running_request_are_shared() -> None:
    engine = Engine()
    prompt = prompt_of(17)
    engine.add(request("first", prompt, max_tokens=20))
    engine.step()
    engine.add(second := request("second", prompt, max_tokens=20))

    step = engine.step()

    assert step is not None
    assert step.num_computed_tokens.tolist() == [17, 16]
    engine.run()
    assert engine.tokens["second"] == expected_tokens(second)


def test_generated_tokens_are_cached_for_the_next_turn() -> None:
    engine = Engine()
    engine.add(first := request("turn-1", 6, max_tokens=8))
    engine.run()
    engine.add(request("turn-2", [*first.prompt_token_ids.tolist(), *engine.tokens["turn-1"], 5]))

    step = engine.step()

    assert step is not None
    assert step.num_computed_tokens.tolist() == [12]


def test_prefix_caching_can_be_turned_off() -> None:
    engine = Engine(enable_prefix_caching=False)
    for name in ("first", "second"):
        engine.add(request(name, prompt_of(16), max_tokens=2))
        engine.run()

    assert all(step.num_computed_tokens[0] in (0, 16) for step in engine.steps if step.request_ids)
    assert engine.scheduler.stats().prefix_cache_queries == 0


@both_schedulers
def test_the_last_in_order_is_preempted() -> None:
    engine = Engine(kv_config(num_blocks=13, max_model_len=48))
    requests = [request(f"r{n}", 15, max_tokens=12) for n in range(3)]
    engine.add(*requests)

    engine.run()

    preempted = [name for step in engine.steps for name in step.preempted_request_ids]
    assert preempted[0] == "r2"
    assert "r0" not in preempted
    assert engine.scheduler.stats().num_preemptions == len(preempted)
    assert all(engine.tokens[r.request_id] == expected_tokens(r, 48) for r in requests)
    engine.assert_clean()


@both_schedulers
def test_a_step_that_preempts_admits_nobody() -> None:
    engine = Engine(kv_config(num_blocks=11, max_model_len=40), scheduling_policy="priority")
    engine.add(request("r1", 11, max_tokens=12, priority=1), request("r2", 19, max_tokens=12, priority=2))
    engine.step()
    engine.add(request("urgent", 11, max_tokens=2, priority=0))  # three blocks, and two are free

    engine.run()

    preempting = [step for step in engine.steps if step.preempted_request_ids]
    assert preempting
    assert all(not step.new_requests and not step.resumed_request_ids for step in preempting)


def test_a_prompt_comes_in_only_when_all_of_it_fits() -> None:
    # 9 blocks of 4; a step computes 8 tokens. "big" would start on the 4 that "small" leaves.
    engine = Engine(kv_config(num_blocks=10, max_model_len=36), max_num_batched_tokens=8)
    engine.add(request("small", 17, max_tokens=3), request("big", 30, max_tokens=3))

    engine.run()

    assert engine.scheduler.stats().num_preemptions == 0
    last_of_small = max(i for i, step in enumerate(engine.steps) if "small" in step.request_ids)
    first_of_big = min(i for i, step in enumerate(engine.steps) if "big" in step.request_ids)
    assert first_of_big > last_of_small


@pytest.mark.parametrize("long_is_running", [False, True])
def test_a_prompt_in_progress_keeps_the_blocks_that_it_still_needs(long_is_running: bool) -> None:
    # 17 blocks of 4: "long" needs 15 of them in the end, "half-cached" 2. "half-cached" asks for less
    # of the budget than its length, which leaves tokens for "third", but there is no block for it.
    engine = Engine(kv_config(num_blocks=18, max_model_len=64), max_num_batched_tokens=16)
    prompt = prompt_of(8)
    engine.add(request("seed", prompt[:5], max_tokens=1))
    engine.run()
    engine.add(request("long", 60, max_tokens=1))
    if long_is_running:
        engine.step()
    engine.add(request("half-cached", prompt, max_tokens=1), request("third", 3, max_tokens=1))

    step = engine.step()

    assert step is not None
    assert step.request_ids == ("long", "half-cached")
    assert step.total_num_tokens < 16
    engine.run()
    assert engine.scheduler.stats().num_preemptions == 0


@both_schedulers
def test_a_more_urgent_request_takes_blocks_from_one_that_runs() -> None:
    engine = Engine(kv_config(num_blocks=9, max_model_len=32), scheduling_policy="priority")
    lazy, urgent = request("lazy", 15, max_tokens=14, priority=5), request("urgent", 11, max_tokens=14)
    engine.add(lazy)
    engine.step()
    engine.add(urgent)

    engine.run()

    assert {name for step in engine.steps for name in step.preempted_request_ids} == {"lazy"}
    assert engine.tokens["lazy"] == expected_tokens(lazy, 32)
    assert engine.tokens["urgent"] == expected_tokens(urgent, 32)


@both_schedulers
def test_no_more_requests_run_than_max_num_seqs() -> None:
    engine = Engine(max_num_seqs=2)
    engine.add(*[request(f"r{n}") for n in range(5)])

    engine.run()

    assert max(len(step.request_ids) for step in engine.steps) == 2


@both_schedulers
def test_the_id_tuple_is_the_same_object_while_the_running_set_is_unchanged() -> None:
    engine = Engine()
    engine.add(request("a"), request("b"))
    engine.step()

    steps = [engine.step() for _ in range(3)]

    assert len({id(step.request_ids) for step in steps if step}) == 1


@both_schedulers
def test_logprob_rows_and_columns_are_cut_to_what_the_request_asked_for() -> None:
    engine = Engine()
    engine.add(request("one", logprobs=1, stop_token_ids=(5,)), request("three", logprobs=3), request("none"))
    step = engine.schedule()
    assert step is not None
    engine.in_flight.clear()
    rows = [[4, 5, 6], [7], [8]]
    ids = np.arange(20, dtype=np.int32).reshape(5, 4)
    logprobs = LogprobRows(
        token_ids=ids, logprobs=-ids.astype(np.float32), ranks=np.arange(5, dtype=np.int32)
    )

    one, three, none = engine.scheduler.update(
        step,
        ModelRunnerOutput(
            step_id=step.step_id,
            request_ids=step.request_ids,
            sampled_token_ids=Ragged.from_rows(rows),
            logprobs=logprobs,
        ),
    )

    assert one.new_token_ids == (4, 5)
    assert one.finish_reason == "stop"
    assert one.stop_reason == 5
    assert one.logprobs is not None
    assert one.logprobs.token_ids.tolist() == [[0, 1], [4, 5]]
    assert one.logprobs.ranks.tolist() == [0, 1]
    assert three.logprobs is not None
    assert three.logprobs.token_ids.tolist() == [[12, 13, 14, 15]]
    assert none.logprobs is None


def test_several_ids_in_one_row_are_all_computed_next() -> None:
    engine = Engine()
    engine.add(request("a", 6, max_tokens=20))
    step = engine.schedule()
    assert step is not None
    engine.in_flight.clear()
    rows = Ragged.from_rows([[4, 5, 6]])

    (output,) = engine.scheduler.update(
        step, ModelRunnerOutput(step_id=0, request_ids=("a",), sampled_token_ids=rows)
    )
    following = engine.scheduler.schedule()

    assert output.new_token_ids == (4, 5, 6)
    assert output.finish_reason is None
    assert following is not None
    assert following.num_computed_tokens.tolist() == [6]
    assert following.num_scheduled_tokens.tolist() == [3]


def test_prompt_logprobs_of_a_chunk_arrive_with_the_chunk() -> None:
    engine = Engine(max_num_batched_tokens=8)
    prompt = prompt_of(20)
    engine.add(request("scored", prompt, max_tokens=2, prompt_logprobs=0))

    engine.run()

    chunks = [o.prompt_logprobs for o in engine.outputs["scored"] if o.prompt_logprobs is not None]
    assert [len(chunk.ranks) for chunk in chunks] == [8, 8, 3]
    assert [token for chunk in chunks for token in chunk.token_ids[:, 0].tolist()] == prompt[1:]


@both_schedulers
def test_a_stop_from_outside_ends_a_request_with_its_reason() -> None:
    engine = Engine()
    engine.add(request("a", max_tokens=20))
    engine.step()

    (output,) = engine.finish("a", "unknown", reason="stop")

    assert output.finish_reason == "stop"
    engine.run()
    engine.assert_clean()


@both_schedulers
def test_a_request_that_never_ran_leaves_no_trace_when_it_is_aborted() -> None:
    engine = Engine(max_num_seqs=1)
    engine.add(request("runs", max_tokens=3), request("waits"))
    engine.step()
    engine.finish("waits")

    engine.run()

    assert all("waits" not in step.finished_request_ids for step in engine.steps)
    engine.assert_clean()


@both_schedulers
def test_an_id_in_use_is_refused() -> None:
    engine = Engine()
    engine.add(request("a"))

    with pytest.raises(InvalidRequest, match="request id 'a' is in use"):
        engine.add(request("a"))


@both_schedulers
def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="the prompt is empty"):
        Engine().add(request("a", []))


@both_schedulers
def test_without_work_there_is_no_step() -> None:
    engine = Engine()

    assert not engine.scheduler.has_work()
    assert engine.scheduler.schedule() is None


@both_schedulers
def test_results_of_another_step_are_refused() -> None:
    engine = Engine()
    engine.add(request("a"))
    step = engine.schedule()
    assert step is not None
    empty = ModelRunnerOutput(step_id=step.step_id, sampled_token_ids=Ragged.from_rows([]))

    with pytest.raises(
        ContractError, match=r"step 0 samples \['a'\], but the model runner answered step 0 with \[\]"
    ):
        engine.scheduler.update(step, empty)


@both_schedulers
def test_a_sampled_row_without_a_token_is_refused() -> None:
    engine = Engine()
    engine.add(request("a"))
    step = engine.schedule()
    assert step is not None
    output = ModelRunnerOutput(step_id=0, request_ids=("a",), sampled_token_ids=Ragged.from_rows([[]]))

    with pytest.raises(ContractError, match="returned no token"):
        engine.scheduler.update(step, output)


@both_schedulers
def test_the_requests_of_a_step_that_failed_end_with_error_and_the_engine_goes_on() -> None:
    engine = Engine()
    engine.add(request("lost"))
    engine.schedule()
    engine.in_flight.clear()  # the step failed: no update will come
    engine.add(fine := request("fine"))

    engine.run()

    assert engine.finish_reason("lost") == "error"
    assert engine.tokens["fine"] == expected_tokens(fine)
    engine.assert_clean()


@both_schedulers
@pytest.mark.parametrize("depth", [1, 2])
def test_blocks_of_a_failed_step_come_back_when_the_engine_ends_its_requests(depth: int) -> None:
    engine = Engine(depth=depth)
    engine.add(request("lost"))
    engine.schedule()
    engine.in_flight.clear()
    engine.finish("lost", reason="error")

    engine.run()

    engine.assert_clean()


def test_what_was_computed_after_a_failed_step_never_enters_the_cache() -> None:
    engine = Engine()
    prompt = prompt_of(8)
    engine.add(request("lost", prompt))
    engine.schedule()
    engine.schedule()
    engine.in_flight.popleft()  # the prompt's step failed, the decode after it came back
    engine.update()
    engine.add(request("again", prompt))

    step = engine.scheduler.schedule()

    assert step is not None
    assert step.request_ids == ("again",)
    assert step.num_computed_tokens.tolist() == [0]


@both_schedulers
def test_capabilities_limit_the_running_requests() -> None:
    engine = Engine(capabilities=replace(ALL, max_num_seqs=2))
    engine.add(*[request(f"r{n}") for n in range(4)])

    engine.run()

    assert max(len(step.request_ids) for step in engine.steps) == 2
