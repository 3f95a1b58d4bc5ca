from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.scheduler.repeats import Repeats


def find(tokens: list[int]) -> int | None:
    return Repeats(array("i", tokens)).find()


def test_a_repeat_goes_on_after_its_earlier_place() -> None:
    assert find([1, 2, 3, 4, 1, 2]) == 2


def test_two_tokens_must_agree() -> None:
    assert find([1, 2, 3, 2]) is None
    assert find([1]) is None
    assert find([]) is None


def test_the_latest_of_equally_long_repeats_counts() -> None:
    assert find([1, 2, 3, 1, 2, 4, 1, 2]) == 5


def test_a_longer_repeat_counts_more_than_a_later_one() -> None:
    assert find([9, 1, 2, 3, 8, 1, 2, 4, 9, 1, 2]) == 3


def test_the_start_of_the_text_is_no_token() -> None:
    # The longest repeat reaches back to the first token; nothing before it is compared.
    assert find([1, 2, 5, 1, 2, 5, 1, 2]) == 5
    assert find([1, 1, 1]) == 2


def test_what_was_appended_is_found() -> None:
    tokens = array("i", [1, 2, 3])
    repeats = Repeats(tokens)
    assert repeats.find() is None

    tokens.extend([7, 1, 2])

    assert repeats.find() == 2


@pytest.mark.parametrize("token", [0, 1, 2**31 - 1])
def test_any_token_id_may_repeat(token: int) -> None:
    assert find([5, token, token, 6, token, token]) == 3


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(0, 40))
def test_the_last_two_tokens_stand_before_the_place(tokens: list[int], first: int) -> None:
    growing = array("i", tokens[:first])
    repeats = Repeats(growing)
    repeats.find()
    growing.extend(tokens[first:])

    place = repeats.find()

    places = [i for i in range(2, len(tokens)) if tokens[i - 2 : i] == tokens[-2:]]
    assert (place in places) if places else place is None
