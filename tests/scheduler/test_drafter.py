from __future__ import annotations

from array import array
from typing import Any

import pytest

from core_engine.sampling.params import SamplingParams
from core_engine.scheduler.drafter import Drafter, can_draft

TEXT = list(range(100, 140))


def drafter(tokens: list[int], longest: int = 7) -> tuple[Drafter, array[int]]:
    held = array("i", tokens)
    return Drafter(held, longest), held


def test_it_proposes_what_followed_before() -> None:
    guess, _ = drafter([*TEXT, 1, *TEXT[:2]])
    assert guess.propose(99) == TEXT[2:5]


def test_it_proposes_nothing_without_a_repeat() -> None:
    guess, _ = drafter(TEXT)
    assert guess.propose(99) == []


def test_it_never_proposes_more_than_there_is_room_for() -> None:
    guess, _ = drafter([*TEXT, *TEXT[:2]])
    assert guess.propose(1) == [TEXT[2]]
    assert guess.propose(0) == []
    assert guess.propose(-1) == []


def test_a_repeat_that_overlaps_its_end_goes_round() -> None:
    guess, _ = drafter([5, 6, 5, 6, 5, 6])
    assert guess.propose(3) == [5, 6, 5]


def test_tries_grow_while_all_is_accepted() -> None:
    guess, tokens = drafter([*TEXT, *TEXT[:2]])
    lengths = []
    for _ in range(3):
        drafts = guess.propose(99)
        lengths.append(len(drafts))
        guess.learn(len(drafts), len(drafts))
        tokens.extend(TEXT[len(tokens) - len(TEXT) :][: len(drafts) + 1])
    assert lengths == [3, 7, 7]


def test_a_try_is_one_longer_than_what_was_accepted_last() -> None:
    guess, _ = drafter([*TEXT, *TEXT[:2]])
    guess.learn(7, 4)
    assert len(guess.propose(99)) == 5


def test_a_try_that_the_step_cut_short_does_not_shorten_the_next() -> None:
    guess, _ = drafter([*TEXT, *TEXT[:2]])
    guess.learn(7, 7)
    guess.learn(1, 1)
    assert len(guess.propose(99)) == 7


def tries_in(num_tokens: int, *, accepted: bool) -> int:
    """How often a request in a text that repeats without end drafts, when all or none is accepted."""
    guess, tokens = drafter([5, 6] * 4)
    num_tries, end = 0, len(tokens) + num_tokens
    while len(tokens) < end:
        drafts = guess.propose(99)
        num_accepted = len(drafts) if accepted else 0
        if drafts:
            num_tries += 1
            guess.learn(len(drafts), num_accepted)
        tokens.extend(([5, 6] * 99)[: num_accepted + 1])
    return num_tries


def test_a_request_that_only_misses_stops_trying() -> None:
    assert tries_in(128, accepted=False) <= 8
    # From then on one token in 64.
    assert tries_in(128 + 640, accepted=False) <= 18


def test_a_request_that_only_hits_always_tries() -> None:
    assert tries_in(128, accepted=True) == 17


def test_hits_make_up_for_misses() -> None:
    guess, tokens = drafter([5, 6] * 4)
    for _ in range(3):
        guess.learn(3, 0)
        tokens.append(5)
    assert guess.propose(9) == []
    for _ in range(3):
        guess.learn(1, 1)

    guess.learn(1, 0)
    tokens.extend([6, 5, 6])

    assert guess.propose(9) != []


@pytest.mark.parametrize(
    ("params", "possible"),
    [
        ({}, True),
        ({"temperature": 0.0, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "logprobs": 2, "n": 3}, True),
        ({"stop": "x", "stop_token_ids": [4], "min_tokens": 2}, True),
        ({"repetition_penalty": 1.1}, False),
        ({"presence_penalty": 0.1}, False),
        ({"frequency_penalty": -0.1}, False),
        ({"logit_bias": {1: 0.5}}, False),
        ({"bad_words": ["x"]}, False),
    ],
)
def test_parameters_that_look_at_earlier_tokens_rule_drafts_out(
    params: dict[str, Any], possible: bool
) -> None:
    assert can_draft(SamplingParams(**params)) is possible
