from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from scheduler.harness import ALL, Engine, expected_tokens, kv_config, prompt_of, request
from scheduler.test_properties import SchedulerMachine, WindowMachine

from core_engine.config import EngineConfig
from core_engine.engine.messages import CoreRequest
from core_engine.errors import ConfigError, UnsupportedFeature
from core_engine.kv_cache.manager import KVCacheManager
from core_engine.plugin import Capabilities
from core_engine.scheduler.output import SchedulerOutput
from core_engine.scheduler.simple import MAX_PREFILLS_IN_A_ROW, SimpleScheduler

#: What the least capable device has to offer.
BARE = Capabilities(max_logprobs=5, prompt_logprobs=True)


def simple(num_blocks: int = 65, max_model_len: int = 64, **settings: object) -> Engine:
    return Engine(
        kv_config(num_blocks=num_blocks, max_model_len=max_model_len),
        scheduler=SimpleScheduler,
        **{"capabilities": BARE, **settings},
    )


def is_prefill(step: SchedulerOutput) -> bool:
    return bool(step.new_requests or step.resumed_request_ids)


def prompts(engine: Engine) -> list[int]:
    """The length of every prompt that was computed, in order."""
    return [
        count for step in engine.steps for count in step.num_scheduled_tokens.tolist() if is_prefill(step)
    ]


def test_prompts_come_in_whole_and_are_then_decoded_together() -> None:
    engine = simple()
    engine.add(request("a", 20, max_tokens=3), request("b", 30, max_tokens=3))

    engine.run()

    scheduled = [step.num_scheduled_tokens.tolist() for step in engine.steps]
    assert scheduled == [[20, 30], [1, 1], [1, 1], []]
    engine.assert_clean()


def test_a_step_never_mixes_prefill_and_decode() -> None:
    engine = simple(max_num_seqs=4, num_blocks=40)
    requests = [request(f"r{n}", 3 + 7 * n, max_tokens=3 + n) for n in range(8)]
    for each in requests:
        engine.add(each)
        engine.step()
    engine.run()

    for step in engine.steps:
        if is_prefill(step):
            assert len(step.request_ids) == len(step.new_requests) + len(step.resumed_request_ids)
            assert step.num_computed_tokens.tolist() == [0] * len(step.request_ids)
        else:
            assert set(step.num_scheduled_tokens.tolist()) <= {1}
    assert all(engine.tokens[r.request_id] == expected_tokens(r) for r in requests)


def test_as_many_prompts_come_in_as_the_budget_holds_in_order() -> None:
    engine = simple(max_num_batched_tokens=64)
    engine.add(request("a", 30), request("b", 30), request("c", 10), request("d", 4))

    first, second = engine.step(), engine.step()

    assert first is not None
    assert first.request_ids == ("a", "b")  # d would fit, but c comes before it
    assert second is not None
    assert second.request_ids == ("c", "d")


def test_after_some_prefills_those_that_run_get_a_step() -> None:
    engine = simple(max_num_seqs=20, num_blocks=200)
    engine.add(*[request(f"r{n}", 40, max_tokens=20) for n in range(9)])

    engine.run()

    kinds = "".join("p" if is_prefill(step) else "d" for step in engine.steps)
    assert MAX_PREFILLS_IN_A_ROW == 2
    assert kinds.startswith("ppdppdppdppdpd")


def test_decodes_do_not_starve_under_a_stream_of_prompts() -> None:
    engine = simple(max_num_seqs=20, num_blocks=200)
    engine.add(first := request("first", 6, max_tokens=20))
    for number in range(60):
        engine.add(request(f"r{number}", 40, max_tokens=1))
        engine.step()

    assert engine.tokens["first"] == expected_tokens(first)


def test_a_prompt_waits_for_no_more_than_a_step_where_there_is_room() -> None:
    engine = simple()
    engine.add(request("early", 6, max_tokens=50))
    for _ in range(5):
        engine.step()
    engine.add(request("late", 6))

    step = engine.step()

    assert step is not None
    assert step.request_ids == ("late",)


def test_prompts_follow_each_other_where_nothing_runs() -> None:
    engine = simple()
    requests = [request(f"r{n}", 60, max_tokens=1) for n in range(6)]
    engine.add(*requests)

    engine.run()

    assert all(is_prefill(step) for step in engine.steps[:6])


def test_a_prefill_follows_while_those_that_run_wait_for_results() -> None:
    engine = simple(depth=4)
    requests = [request(f"r{n}", 60, max_tokens=2) for n in range(4)]
    engine.add(*requests)

    engine.run()

    assert all(engine.tokens[r.request_id] == expected_tokens(r) for r in requests)
    engine.assert_clean()


def test_no_prefix_is_reused() -> None:
    engine = simple()
    for name in ("first", "second"):
        engine.add(request(name, prompt_of(16), max_tokens=2))
        engine.run()

    assert prompts(engine) == [16, 16]
    stats = engine.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (0, 0)


def test_a_preempted_request_comes_back_as_one_longer_prompt() -> None:
    engine = simple(num_blocks=9, max_model_len=32)
    first, second = request("first", 12, max_tokens=16), request("second", 12, max_tokens=16)
    engine.add(first, second)

    engine.run()

    (resumed,) = [step for step in engine.steps if step.resumed_request_ids]
    assert resumed.request_ids == ("second",)
    assert resumed.num_computed_tokens.tolist() == [0]
    assert resumed.num_scheduled_tokens[0] > 12
    assert engine.tokens["first"] == expected_tokens(first)
    assert engine.tokens["second"] == expected_tokens(second)
    engine.assert_clean()


def test_a_more_urgent_prompt_comes_in_first_and_keeps_its_blocks() -> None:
    engine = simple(num_blocks=9, max_model_len=32, scheduling_policy="priority")
    lazy, urgent = request("lazy", 12, max_tokens=16, priority=5), request("urgent", 12, max_tokens=16)
    engine.add(lazy, urgent)

    engine.run()

    assert engine.steps[0].request_ids == ("urgent", "lazy")
    assert {name for step in engine.steps for name in step.preempted_request_ids} == {"lazy"}
    assert engine.tokens["lazy"] == expected_tokens(lazy, 32)


def test_a_step_is_filled_up_to_its_padded_cost() -> None:
    # 70 tokens would be padded to 128, which is more than the budget of 100.
    buckets = replace(BARE, token_buckets=(16, 32, 64, 128))
    engine = simple(capabilities=buckets, max_num_batched_tokens=100)
    engine.add(request("a", 40), request("b", 30))

    engine.run()

    assert prompts(engine) == [40, 30]
    assert engine.steps[0].request_ids == ("a",)


def test_a_lone_longest_sequence_must_fit_into_a_step() -> None:
    kv = KVCacheManager(kv_config(max_model_len=64))
    config = EngineConfig(model="m", max_num_batched_tokens=63)

    with pytest.raises(ConfigError, match=r"max_num_batched_tokens 63 is less than max_model_len 64"):
        SimpleScheduler(config, kv, BARE)


@pytest.mark.parametrize(
    "wish",
    [{"enable_chunked_prefill": True}, {"enable_prefix_caching": True}, {"num_draft_tokens": 2}],
    ids=lambda wish: next(iter(wish)),
)
def test_what_it_does_without_is_refused_by_name(wish: dict[str, object]) -> None:
    with pytest.raises(UnsupportedFeature, match=f"SimpleScheduler.*{next(iter(wish))}"):
        simple(capabilities=replace(ALL, draft_tokens=True), **wish)


def test_four_streams_of_a_prompt_are_four_requests() -> None:
    engine = simple()
    streams = [request(f"r/{n}", prompt_of(9), stream=n, max_tokens=6) for n in range(4)]
    engine.add(*streams)

    engine.run()

    assert prompts(engine) == [9, 9, 9, 9]
    assert all(engine.tokens[r.request_id] == expected_tokens(r) for r in streams)


def test_prompt_logprobs_of_a_prompt_arrive_at_once() -> None:
    engine = simple()
    prompt = prompt_of(20)
    engine.add(request("scored", prompt, max_tokens=2, prompt_logprobs=0, logprobs=2))

    engine.run()

    chunks = [o.prompt_logprobs for o in engine.outputs["scored"] if o.prompt_logprobs is not None]
    assert [chunk.token_ids[:, 0].tolist() for chunk in chunks] == [prompt[1:]]
    rows = [o.logprobs for o in engine.outputs["scored"] if o.new_token_ids]
    assert [row.token_ids.shape for row in rows if row] == [(1, 3), (1, 3)]


def test_case_32_the_tokens_are_those_of_the_unified_scheduler() -> None:
    def requests() -> list[CoreRequest]:
        return [
            request(f"r{n}", 5 + 9 * (n % 5), max_tokens=4 + 3 * (n % 4), stream=n % 3, eos=(7,))
            for n in range(12)
        ]

    results = []
    for engine in (
        Engine(kv_config(num_blocks=40)),
        Engine(kv_config(num_blocks=40), enable_prefix_caching=False, max_num_batched_tokens=5),
        simple(num_blocks=40),
        simple(num_blocks=17),
    ):
        engine.add(*requests())
        engine.run()
        results.append(dict(engine.tokens))
        engine.assert_clean()

    assert results == [results[0]] * 4
    assert results[0] == {r.request_id: expected_tokens(r) for r in requests()}


class SimpleMachine(SchedulerMachine):
    scheduler = SimpleScheduler
    policies = ("fcfs", "priority", "scheduler.odd_policy:AnyVictim")


TestSimpleMachine = SimpleMachine.TestCase
TestSimpleMachine.settings = settings(SchedulerMachine.TestCase.settings, max_examples=80)


class SimpleWindowMachine(WindowMachine):
    scheduler = SimpleScheduler


TestSimpleWindowMachine = SimpleWindowMachine.TestCase
TestSimpleWindowMachine.settings = settings(SchedulerMachine.TestCase.settings, max_examples=60)
