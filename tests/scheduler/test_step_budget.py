from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from core_engine.scheduler.step_budget import StepBudget


def divide(wanted: list[int], *, short_demand: int = 0) -> list[int]:
    step = StepBudget(16, chunked=True)
    return step.divide(np.array(wanted, dtype=np.int32), lambda most: min(most, short_demand)).tolist()


def test_all_get_what_they_want_when_it_fits() -> None:
    assert divide([1, 0, 10, 1]) == [1, 0, 10, 1]


def test_decodes_come_first_and_prompts_share_the_rest_in_order() -> None:
    assert divide([10, 1, 10, 1]) == [10, 1, 4, 1]


def test_a_long_prompt_leaves_half_to_short_ones_behind_it() -> None:
    assert divide([100, 10, 10]) == [8, 8, 0]


def test_a_long_prompt_leaves_no_more_than_short_ones_want() -> None:
    assert divide([100, 3]) == [13, 3]
    assert divide([100], short_demand=5) == [11]


def test_all_long_prompts_together_leave_half() -> None:
    assert divide([100, 100, 10]) == [8, 0, 8]


def test_a_short_prompt_ahead_of_a_long_one_is_served_whole() -> None:
    assert divide([10, 100]) == [10, 6]


def test_without_chunks_a_prompt_gets_all_or_nothing() -> None:
    whole = StepBudget(16, chunked=False)

    assert [whole.take(wanted, lambda most: 0) for wanted in (10, 10, 6)] == [10, 0, 6]
    assert whole.left == 0


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(8, 20), st.integers(0, 30))
def test_the_budget_is_kept_and_is_used_up_while_anyone_wants_tokens(
    wanted: list[int], num_tokens: int, short_demand: int
) -> None:
    step = StepBudget(num_tokens, chunked=True)

    granted = step.divide(np.array(wanted, dtype=np.int32), lambda most: min(most, short_demand)).tolist()

    assert sum(granted) + step.left == num_tokens
    assert all(0 <= got <= want for got, want in zip(granted, wanted, strict=True))
    if granted != wanted:
        assert step.left <= short_demand
