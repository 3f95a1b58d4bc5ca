"""The unified scheduler over groups of layers with windows; blocks hold 4 tokens."""

from __future__ import annotations

import numpy as np
import pytest
from scheduler.harness import Engine, expected_tokens, kv_config, prompt_of, request

from core_engine.errors import InvalidRequest

#: Full attention, a window of 6 tokens, a window of 9.
THREE = (None, 6, 9)


def test_a_long_decode_runs_in_the_blocks_of_its_window() -> None:
    # 6 tokens of window and a step of 4 lie in four blocks at most; the sequence has 60 tokens.
    engine = Engine(kv_config(num_blocks=5, windows=(6,), max_step_tokens=4), max_num_batched_tokens=4)
    long = request("long", 20, max_tokens=40)
    engine.add(long)

    engine.run()

    assert engine.tokens["long"] == expected_tokens(long)
    assert engine.scheduler.stats().num_preemptions == 0
    engine.assert_clean()


def test_fewer_blocks_are_held_than_without_windows() -> None:
    engine = Engine(kv_config(windows=THREE))
    engine.add(long := request("long", 6, max_tokens=50))
    most_held = 0
    while engine.scheduler.has_work():
        engine.step()
        most_held = max(most_held, engine.kv.pool.num_usable - engine.kv.pool.num_free)

    # 55 tokens lie in 14 blocks; the 5 and the 8 last ones, which the next token sees, in 2 and 3 at most.
    assert most_held == 14 + 2 + 3
    assert engine.tokens["long"] == expected_tokens(long)


def test_blocks_go_back_when_their_step_is_updated_not_when_it_is_scheduled() -> None:
    engine = Engine(kv_config(windows=(6,)))
    engine.add(request("a", 16))

    engine.schedule()
    assert engine.kv.pool.num_usable - engine.kv.pool.num_free == 4

    engine.update()
    assert engine.kv.pool.num_usable - engine.kv.pool.num_free == 2


def test_steps_in_flight_are_waited_for_before_anyone_is_preempted() -> None:
    # Chunks of 4 of a lone prompt: while one is in flight, the next finds no block within its window's four.
    engine = Engine(
        kv_config(num_blocks=5, windows=(10,), max_step_tokens=4), depth=2, max_num_batched_tokens=4
    )
    long = request("long", 40, max_tokens=6)
    engine.add(long)

    engine.run()

    assert engine.tokens["long"] == expected_tokens(long)
    assert engine.scheduler.stats().num_preemptions == 0


def test_a_prompt_longer_than_the_pool_holds_is_refused_with_the_length_that_fits() -> None:
    # 16 tokens: 4 blocks, and 3 for a step of 4 and the 5 tokens before it.
    engine = Engine(kv_config(num_blocks=8, windows=(None, 6), max_step_tokens=4), max_num_batched_tokens=4)

    with pytest.raises(InvalidRequest, match=r"prompt has 17 tokens.*whole KV cache holds 16"):
        engine.add(request("big", 17))


def test_a_lone_decode_ends_with_length_where_the_pool_with_all_its_groups_is_full() -> None:
    engine = Engine(kv_config(num_blocks=8, windows=(None, 6), max_step_tokens=4), max_num_batched_tokens=4)
    engine.add(lone := request("lone", 6, max_tokens=50))

    engine.run()

    assert engine.finish_reason("lone") == "length"
    assert engine.tokens["lone"] == expected_tokens(lone)[: 17 - 6]
    assert "the KV cache holds 16" in str(engine.outputs["lone"][-1].message)


def test_a_hit_hands_the_runner_the_null_block_for_what_a_window_does_not_see() -> None:
    engine = Engine(kv_config(windows=THREE))
    prompt = prompt_of(18)
    engine.add(request("cold", prompt, max_tokens=1))
    engine.run()
    engine.add(warm := request("warm", prompt, max_tokens=5))

    step = engine.step()

    assert step is not None
    assert step.num_computed_tokens.tolist() == [16]
    # The token at 16 sees from 11 on in the second group (block 2) and from 8 on in the third.
    assert [(blocks.row(0) == 0).tolist() for blocks in step.new_block_ids] == [
        [False, False, False, False, False],
        [True, True, False, False, False],
        [True, True, False, False, False],
    ]
    engine.run()
    assert engine.tokens["warm"] == expected_tokens(warm)


def test_a_preempted_request_resumes_on_what_all_groups_still_have() -> None:
    engine = Engine(kv_config(num_blocks=30, max_model_len=40, windows=THREE))
    requests = [request(name, 12, max_tokens=24) for name in ("first", "second", "third")]
    engine.add(*requests)

    engine.run()

    assert engine.scheduler.stats().num_preemptions > 0
    for each in requests:
        assert engine.tokens[each.request_id] == expected_tokens(each, 40)
    engine.assert_clean()


def test_prompts_in_progress_keep_their_place_in_all_groups() -> None:
    engine = Engine(kv_config(num_blocks=30, windows=(None, 6), max_step_tokens=8), max_num_batched_tokens=8)
    requests = [request(f"r{number}", 36, max_tokens=2) for number in range(4)]
    engine.add(*requests)

    engine.run()

    assert engine.scheduler.stats().num_preemptions == 0
    assert all(engine.tokens[each.request_id] == expected_tokens(each) for each in requests)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("windows", [(5,), (None, 6), THREE])
def test_case_15_what_windows_gave_back_is_never_read(windows: tuple[int | None, ...], depth: int) -> None:
    # Every block that no request holds is overwritten before each step, those behind windows included.
    config = kv_config(num_blocks=12 * len(windows), max_model_len=40, windows=windows)
    engine = Engine(config, depth=depth, max_num_seqs=4, enable_prefix_caching=False)
    requests = [request(f"r{number}", 5 + 3 * number, max_tokens=20) for number in range(6)]
    engine.add(*requests)
    while engine.scheduler.has_work():
        engine.runner.pool.slots[list(engine.kv.pool._free)] = np.uint64(0xDEAD)
        engine.step()
    while engine.in_flight:
        engine.update()

    assert all(engine.tokens[each.request_id] == expected_tokens(each, 40) for each in requests)


def test_an_abort_frees_what_a_window_has_left() -> None:
    engine = Engine(kv_config(windows=THREE), max_num_batched_tokens=8)
    engine.add(request("chunked", 40))
    for _ in range(3):
        engine.step()

    engine.finish("chunked")
    engine.run()

    engine.assert_clean()
