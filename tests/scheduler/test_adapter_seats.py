"""Requests with LoRA adapters: no more adapters run at once than there are slots, and each gets its turn."""

from __future__ import annotations

import pytest
from scheduler.harness import Engine, both_schedulers, expected_tokens, kv_config, prompt_of, request


def started(engine: Engine) -> list[str]:
    """Ids in the order in which they first ran."""
    return [new.request_id for step in engine.steps for new in step.new_requests]


@both_schedulers
def test_case_33_with_one_slot_the_second_adapter_runs_before_later_requests_of_the_first() -> None:
    engine = Engine(max_loras=1)
    requests = [request(name, lora_id=1 + (name[0] == "b")) for name in ("a1", "b1", "a2", "a3")]
    engine.add(*requests)
    for index in range(3):  # more of the first adapter keep coming
        engine.step()
        engine.add(late := request(f"a-late-{index}", lora_id=1))
        requests.append(late)
    engine.run()
    assert started(engine)[:3] == ["a1", "b1", "a2"]
    assert all(engine.tokens[r.request_id] == expected_tokens(r) for r in requests)
    engine.assert_clean()


@both_schedulers
def test_case_33_requests_without_an_adapter_pass_those_that_wait_for_a_slot() -> None:
    engine = Engine(max_loras=1)
    engine.add(request("a", lora_id=1, max_tokens=20), request("b", lora_id=2), request("plain"))
    engine.run()
    assert started(engine) == ["a", "plain", "b"]


@both_schedulers
def test_as_many_adapters_as_slots_run_at_once() -> None:
    engine = Engine(max_loras=2)
    engine.add(*(request(name, lora_id=n) for n, name in enumerate("abc", start=1)))
    engine.step()
    assert started(engine) == ["a", "b"]
    engine.run()
    assert started(engine) == ["a", "b", "c"]


@both_schedulers
def test_requests_of_one_adapter_share_its_seat() -> None:
    engine = Engine(max_loras=1)
    engine.add(*(request(name, lora_id=7) for name in "abcd"))
    engine.step()
    assert started(engine) == list("abcd")


@both_schedulers
@pytest.mark.parametrize("depth", [1, 2])
def test_a_preempted_request_comes_back_with_its_adapter(depth: int) -> None:
    # 12 usable blocks of 4; the four want 24 in the end.
    engine = Engine(kv_config(num_blocks=13), max_loras=2, depth=depth)
    requests = [request(f"r{n}", 8, max_tokens=16, lora_id=n % 3) for n in range(4)]
    engine.add(*requests)
    engine.run()
    assert engine.scheduler.stats().num_preemptions > 0
    assert all(engine.tokens[r.request_id] == expected_tokens(r) for r in requests)
    engine.assert_clean()


def test_a_prompt_deferred_for_its_adapter_takes_no_share_from_a_long_one() -> None:
    engine = Engine(kv_config(num_blocks=129, max_model_len=256), max_loras=1, max_num_batched_tokens=16)
    engine.add(request("a", 4, max_tokens=40, lora_id=1))
    engine.step()
    engine.add(request("long", 100), request("b", 8, lora_id=2))
    step = engine.step()
    assert step is not None
    # One token goes to the decode; nobody else can use the rest.
    assert step.num_scheduled_tokens.tolist() == [1, 15]


def test_case_11_equal_tokens_under_other_adapters_share_no_block() -> None:
    engine = Engine(max_loras=2)
    prompt = prompt_of(17)
    cold = [
        request("base", prompt),
        request("first", prompt, lora_id=1),
        request("second", prompt, lora_id=2),
    ]
    for each in cold:
        engine.add(each)
        engine.run()
        assert engine.outputs[each.request_id][0].num_cached_tokens == 0
        assert engine.tokens[each.request_id] == expected_tokens(each)
    warm = request("first again", prompt, lora_id=1)
    engine.add(warm)
    engine.run()
    assert engine.outputs["first again"][0].num_cached_tokens == 16
    assert engine.tokens["first again"] == expected_tokens(warm)
