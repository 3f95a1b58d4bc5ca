from __future__ import annotations

from typing import Any

import numpy as np

from core_engine._ragged import FloatArray
from core_engine.sampling.params import SamplingParams
from core_engine.scheduler.output import NewRequest
from core_engine.worker.logit_bias import LogitBias

VOCAB = 30
EOS = 7


def request(params: SamplingParams, bad_words: tuple[tuple[int, ...], ...] = ()) -> NewRequest:
    return NewRequest(
        request_id="r",
        prompt_token_ids=np.array([1], dtype=np.int32),
        sampling_params=params,
        seed=0,
        eos_token_ids=(EOS, VOCAB + 5),
        bad_words_token_ids=bad_words,
    )


def build(bias: LogitBias, *sequences: tuple[list[int], list[int]]) -> FloatArray | None:
    """Build a step whose rows have these (prompt, output) tokens."""
    table = np.zeros((len(sequences), 40), dtype=np.int32)
    for row, (prompt, output) in enumerate(sequences):
        table[row, : len(prompt) + len(output)] = prompt + output
    num_prompt = np.array([len(prompt) for prompt, _ in sequences], dtype=np.int32)
    num_tokens = np.array([len(prompt) + len(output) for prompt, output in sequences], dtype=np.int32)
    rows = np.arange(len(sequences), dtype=np.int32)
    return bias.build(rows, len(sequences), table, num_prompt, num_tokens)


def forbidden(dense: Any, row: int = 0) -> list[int]:
    return [] if dense is None else np.flatnonzero(np.isneginf(dense[row])).tolist()


def test_a_request_that_adds_nothing_makes_no_array() -> None:
    bias = LogitBias(VOCAB)
    bias.add(0, request(SamplingParams()))
    assert build(bias, ([1], [])) is None


def test_logit_bias_is_laid_out_by_row() -> None:
    bias = LogitBias(VOCAB)
    bias.add(1, request(SamplingParams(logit_bias={3: 2.5, 4: -100})))
    dense = build(bias, ([1], []), ([1], []))
    assert dense is not None
    assert not dense[0].any()
    assert dense[1, [3, 4]].tolist() == [2.5, -100]
    assert np.count_nonzero(dense) == 2


def test_case_21_min_tokens_forbids_every_end_until_it_is_reached() -> None:
    bias = LogitBias(VOCAB)
    bias.add(0, request(SamplingParams(min_tokens=2, stop_token_ids=[11])))
    assert forbidden(build(bias, ([1, 1], []))) == [EOS, 11]
    assert forbidden(build(bias, ([1, 1], [5]))) == [EOS, 11]
    assert build(bias, ([1, 1], [5, 5])) is None


def test_min_tokens_wins_over_a_bias_for_an_end() -> None:
    bias = LogitBias(VOCAB)
    bias.add(0, request(SamplingParams(min_tokens=1, logit_bias={EOS: 100.0})))
    assert forbidden(build(bias, ([1], []))) == [EOS]
    dense = build(bias, ([1], [5]))
    assert dense is not None
    assert dense[0, EOS] == 100


def test_a_bad_word_of_one_token_is_always_forbidden() -> None:
    bias = LogitBias(VOCAB)
    bias.add(0, request(SamplingParams(), ((9,), (4, 9))))
    assert forbidden(build(bias, ([1], []))) == [9]


def test_case_18_a_bad_words_last_token_is_forbidden_after_the_others() -> None:
    bias = LogitBias(VOCAB)
    bias.add(0, request(SamplingParams(), ((4, 5, 6), (4, 5, 8), (5, 9), (2, 5, 3))))
    assert forbidden(build(bias, ([1], [4]))) == []
    assert forbidden(build(bias, ([1], [4, 5]))) == [6, 8, 9]
    assert forbidden(build(bias, ([1], [4, 5, 6]))) == []


def test_a_bad_word_may_begin_in_the_prompt() -> None:
    bias = LogitBias(VOCAB)
    bias.add(0, request(SamplingParams(), ((4, 5, 6),)))
    assert forbidden(build(bias, ([1, 4], [5]))) == [6]


def test_a_sequence_shorter_than_the_bad_word_is_no_match() -> None:
    bias = LogitBias(VOCAB)
    bias.add(0, request(SamplingParams(), ((0, 0, 0, 6),)))
    assert build(bias, ([0], [])) is None


def test_a_step_does_not_see_what_an_earlier_one_added() -> None:
    bias = LogitBias(VOCAB)
    bias.add(0, request(SamplingParams(logit_bias={3: 1.0})))
    bias.add(1, request(SamplingParams(), ((9,),)))
    build(bias, ([1], []), ([1], []))
    bias.remove(0)
    dense = build(bias, ([1], []), ([1], []))
    assert dense is not None
    assert np.count_nonzero(dense) == 1
    assert forbidden(dense, row=1) == [9]


def test_ids_outside_the_vocabulary_are_left_out() -> None:
    bias = LogitBias(VOCAB)
    bias.add(0, request(SamplingParams(logit_bias={VOCAB: 1.0}), ((VOCAB,),)))
    assert build(bias, ([1], [])) is None
