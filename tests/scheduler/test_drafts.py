"""Drafts change how many tokens a step brings, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from draft_oracle import Plan, draft_all_right, draft_all_wrong, draft_at_random
from scheduler.harness import ALL, MODEL, Engine, expected_tokens, kv_config, prompt_of, request

from core_engine._ragged import Ragged
from core_engine.config import EngineConfig
from core_engine.errors import ContractError, UnsupportedFeature
from core_engine.kv_cache.specs import KVCacheConfig
from core_engine.scheduler.limits import SchedulerLimits
from core_engine.scheduler.output import SchedulerOutput
from core_engine.scheduler.unified import UnifiedScheduler


def drafting(plan: Plan = draft_all_right, kv: KVCacheConfig | None = None, **settings: Any) -> Engine:
    engine = Engine(kv, num_draft_tokens=7, **settings)
    engine.draft(plan)
    return engine


def drafts_of(step: SchedulerOutput) -> list[list[int]]:
    drafts = step.draft_token_ids
    return [] if drafts is None else [drafts.row(row).tolist() for row in range(len(drafts))]


def num_drafts(step: SchedulerOutput) -> int:
    return sum(map(len, drafts_of(step)))


def test_accepted_drafts_save_steps() -> None:
    engine = drafting()
    only = request("only", 6, max_tokens=33)
    engine.add(only)

    engine.run()

    assert engine.tokens["only"] == expected_tokens(only)
    # The prefill, four steps of eight tokens, and one that tells of the end.
    assert [len(output.new_token_ids) for output in engine.outputs["only"]] == [1, 8, 8, 8, 8]
    engine.assert_clean()


def test_rejected_drafts_cost_steps_nothing() -> None:
    engine = drafting(draft_all_wrong)
    only = request("only", 6, max_tokens=20)
    engine.add(only)

    engine.run()

    assert engine.tokens["only"] == expected_tokens(only)
    assert len(engine.outputs["only"]) == 20


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_tokens_are_the_same_whatever_is_accepted(seed: int, depth: int) -> None:
    engine = drafting(draft_at_random(seed), kv_config(num_blocks=30), depth=depth, max_num_seqs=8)
    requests = [
        replace(
            request(f"r{n}", 5 + 3 * n, max_tokens=10 + 5 * n, stream=n, eos=(3,)),
            params=request("x", logprobs=2 if n % 2 else None).params,
        )
        for n in range(7)
    ]
    engine.add(*requests)

    engine.run()

    assert {r.request_id: engine.tokens[r.request_id] for r in requests} == {
        r.request_id: expected_tokens(r) for r in requests
    }
    if depth == 1:  # deeper, a request has nearly always a step in flight
        assert any(num_drafts(step) for step in engine.steps)
    engine.assert_clean()


def test_stats_count_drafts_and_those_accepted() -> None:
    engine = drafting(lambda most: (min(4, most), min(3, most)))
    engine.add(request("only", 6, max_tokens=9))

    engine.run()

    stats = engine.scheduler.stats()
    # Of the second four drafts there was room for three.
    assert (stats.num_draft_tokens, stats.num_accepted_tokens) == (7, 6)


def test_without_the_setting_nothing_is_drafted() -> None:
    engine = Engine()
    engine.add(request("loop", [1, 2] * 8))

    engine.run()

    assert engine.scheduler.drafts is None
    assert all(step.draft_token_ids is None for step in engine.steps)


def test_a_repeated_text_is_drafted_from_the_prompt() -> None:
    engine = Engine(num_draft_tokens=7)
    engine.add(request("loop", [1, 2, 3, 4, 5] * 3))
    engine.step()

    tokens = engine.scheduler.roster.requests["loop"].tokens
    tokens[-1] = 1  # what the model said does not matter here
    step = engine.scheduler.schedule()

    assert step is not None
    assert drafts_of(step) == [[2, 3, 4]]


# What drafts may take.


def test_drafts_take_only_rows_that_requests_leave_free() -> None:
    engine = drafting(max_num_seqs=4)
    engine.add(*[request(f"r{n}", 4, max_tokens=20) for n in range(3)])
    engine.step()

    step = engine.step()

    assert step is not None
    assert drafts_of(step) == [drafts_of(step)[0], [], []]
    assert num_drafts(step) == 1


def test_waiting_requests_come_before_drafts() -> None:
    engine = drafting(max_num_seqs=2)
    engine.add(request("first", 4, max_tokens=20))
    engine.step()
    engine.add(request("second", 4, max_tokens=20))

    step = engine.step()

    assert step is not None
    assert step.request_ids == ("first", "second")
    assert step.draft_token_ids is None


def test_drafts_take_only_what_the_budget_leaves() -> None:
    engine = drafting(max_num_batched_tokens=8)
    engine.add(request("decodes", 4, max_tokens=20))
    engine.step()
    engine.add(request("prompt", 6))

    step = engine.step()

    assert step is not None
    assert step.num_scheduled_tokens.tolist() == [2, 6]


def test_drafts_preempt_nobody_and_take_no_block_that_others_may_need() -> None:
    def preemptions(engine: Engine) -> int:
        engine.add(*[request(f"r{n}", 11, max_tokens=14) for n in range(3)])
        engine.run()
        return engine.scheduler.stats().num_preemptions

    kv = kv_config(num_blocks=20, max_model_len=32)
    assert preemptions(Engine(kv)) == 0
    assert preemptions(drafting(draft_all_wrong, kv)) == 0
    tight = kv_config(num_blocks=12, max_model_len=32)
    assert preemptions(drafting(draft_all_wrong, tight)) == preemptions(Engine(tight)) > 0


def test_a_draft_leaves_the_last_block_to_who_will_need_it() -> None:
    # "b" ends before "a" needs a third block; drafts of "a" would take it now.
    engine = drafting(draft_all_wrong, kv_config(num_blocks=6))
    engine.add(request("a", 5, max_tokens=7), request("b", 7, max_tokens=3))

    engine.run()

    assert engine.scheduler.stats().num_preemptions == 0


def test_drafts_keep_to_max_tokens() -> None:
    engine = drafting()
    engine.add(request("only", 6, max_tokens=4))

    engine.run()

    # After the prefill three tokens are missing: two drafts and the token after them.
    assert [num_drafts(step) for step in engine.steps] == [0, 2, 0]
    assert engine.finish_reason("only") == "length"


@pytest.mark.parametrize(
    "params", [{"repetition_penalty": 1.5}, {"logit_bias": {4: 1.0}}, {"bad_words": ["x"]}]
)
def test_requests_whose_logits_depend_on_earlier_tokens_do_not_draft(params: dict[str, Any]) -> None:
    engine = drafting()
    engine.add(request("plain", 6, **params))

    engine.step()
    step = engine.step()

    assert step is not None
    assert step.draft_token_ids is None


def test_no_draft_before_min_tokens_are_there() -> None:
    engine = drafting(lambda most: (min(2, most), 2))
    only = request("only", 6, max_tokens=12, min_tokens=5, eos=range(0, MODEL.vocab_size, 2))
    engine.add(only)

    engine.run()

    assert engine.tokens["only"] == expected_tokens(only)
    counts = [num_drafts(step) for step in engine.steps]
    assert counts[:5] == [0] * 5


def test_the_capability_is_needed() -> None:
    config = EngineConfig(model="fake", num_draft_tokens=2)
    with pytest.raises(UnsupportedFeature, match="num_draft_tokens=2 was asked for"):
        SchedulerLimits.settle(config, replace(ALL, draft_tokens=False), 64, UnifiedScheduler)


# What becomes of them.


def test_case_13_rejected_drafts_never_enter_the_cache() -> None:
    engine = drafting(draft_all_wrong)
    prompt = prompt_of(6)
    engine.add(request("a", prompt, max_tokens=20))
    engine.step()
    step = engine.step()
    assert step is not None
    wrong = drafts_of(step)[0]
    assert len(wrong) == 7  # they fill blocks 1 and 2
    known = [*prompt, *engine.tokens["a"][:1]]
    engine.finish("a")

    engine.add(request("b", [*known, *wrong, 1]))
    following = engine.step()

    assert following is not None
    assert following.num_computed_tokens.tolist() == [4]
    engine.run()


def test_case_13_a_block_whose_last_token_was_computed_as_a_draft_is_not_cached() -> None:
    engine = drafting(draft_all_wrong)
    prompt = prompt_of(6)
    engine.add(request("a", prompt, max_tokens=20))
    engine.step()
    engine.step()
    # The eighth token is known and fills block 1, but the cache holds the draft that stood in its place.
    known = [*prompt, *engine.tokens["a"]]
    assert len(known) == 8
    engine.finish("a")

    engine.add(request("b", [*known, 1]))
    following = engine.step()

    assert following is not None
    assert following.num_computed_tokens.tolist() == [4]


def test_blocks_of_accepted_drafts_enter_the_cache() -> None:
    engine = drafting()
    only = request("a", 6, max_tokens=20)
    engine.add(only)
    engine.step()
    engine.step()
    text = [*only.prompt_token_ids.tolist(), *engine.tokens["a"]]
    engine.finish("a")

    engine.add(request("b", [*text, 1]))
    following = engine.step()

    assert following is not None
    # 6 + 1 tokens were known and 7 drafts accepted: 14 are computed, 3 blocks of 4 are full.
    assert following.num_computed_tokens.tolist() == [12]


def test_a_stop_token_among_accepted_drafts_ends_the_request() -> None:
    engine = drafting()
    plain = request("only", 6, max_tokens=20, logprobs=1)
    stop = expected_tokens(plain)[4]
    only = replace(plain, eos_token_ids=(stop,))
    engine.add(only)

    engine.run()

    assert engine.tokens["only"] == expected_tokens(only)
    last = engine.outputs["only"][-1]
    assert last.finish_reason == "stop"
    assert last.logprobs is not None
    assert last.logprobs.token_ids[:, 0].tolist() == list(last.new_token_ids)
    engine.assert_clean()


def test_an_abort_while_drafts_are_in_flight_frees_everything() -> None:
    engine = drafting()
    engine.add(request("only", 6, max_tokens=20))
    engine.step()
    step = engine.schedule()
    assert step is not None
    assert num_drafts(step)

    engine.finish("only")
    engine.run()

    engine.assert_clean()


def test_preempted_while_drafts_are_in_flight() -> None:
    engine = drafting(lambda most: (min(3, most), 1), kv_config(num_blocks=9, max_model_len=32))
    first = request("first", 12, max_tokens=16, priority=0)
    second = request("second", 12, max_tokens=16, priority=1)
    engine.add(first, second)
    engine.step()
    step = engine.schedule()
    assert step is not None
    assert num_drafts(step)
    engine.scheduler.roster.preempt(engine.scheduler.roster.requests["second"])

    engine.run()

    assert engine.tokens["first"] == expected_tokens(first, 32)
    assert engine.tokens["second"] == expected_tokens(second, 32)
    engine.assert_clean()


def test_nothing_is_scheduled_for_a_request_while_its_drafts_are_in_flight() -> None:
    engine = drafting()
    engine.add(request("drafts", 6, max_tokens=30))
    engine.step()
    engine.add(request("other", 20, max_tokens=4))
    first = engine.schedule()
    second = engine.schedule()

    assert first is not None
    assert second is not None
    assert num_drafts(first) > 0
    assert second.request_ids == ("other",)
    engine.run()
    engine.assert_clean()


def test_no_draft_while_a_step_of_the_request_is_in_flight() -> None:
    engine = drafting(depth=2)
    engine.add(request("only", 6, max_tokens=30))

    engine.schedule()
    second = engine.schedule()

    assert second is not None
    assert second.request_ids == ("only",)
    assert second.draft_token_ids is None


@pytest.mark.parametrize("count", [0, 9])
def test_a_wrong_number_of_tokens_is_the_runners_fault(count: int) -> None:
    engine = drafting()
    engine.add(request("only", 6, max_tokens=30))
    engine.step()
    engine.schedule()
    step, output = engine.in_flight.popleft()
    ids = Ragged(np.ones(count, dtype=np.int32), np.array([0, count], dtype=np.int32))

    with pytest.raises(ContractError, match="drafts"):
        engine.scheduler.update(step, replace(output, sampled_token_ids=ids))
