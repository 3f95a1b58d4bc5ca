from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sampling_case import keys

from core_engine.sampling.params import SamplingParams
from core_engine.sampling.reference import ReferenceSampler
from core_engine.scheduler.drafts import MAX_DRAFT_TOKENS
from core_engine.scheduler.output import NewRequest
from core_engine.worker.sampling_state import MAX_ROWS, SamplingState
from core_engine.worker.shape_policy import SamplingKind
from core_engine.worker.step import SAMPLING_ARRAYS, HostSampling

VOCAB = 50
EOS = 7


class Batch:
    """A `SamplingState` with the token arrays that the input batch keeps beside it."""

    def __init__(self, num_rows: int = 8) -> None:
        self.state = SamplingState(num_rows, VOCAB)
        self.tokens = np.zeros((num_rows, 200), dtype=np.int32)
        self.num_prompt = np.zeros(num_rows, dtype=np.int32)
        self.num_tokens = np.zeros(num_rows, dtype=np.int32)

    def add(
        self,
        row: int,
        params: SamplingParams,
        prompt: list[int],
        output: tuple[int, ...] = (),
        **request: Any,
    ) -> None:
        self.tokens[row, : len(prompt) + len(output)] = [*prompt, *output]
        self.num_prompt[row], self.num_tokens[row] = len(prompt), len(prompt) + len(output)
        fields: dict[str, Any] = {"seed": 1, "eos_token_ids": (EOS,), **request}
        ids = np.array(prompt, dtype=np.int32)
        self.state.add(
            row, NewRequest(request_id=str(row), prompt_token_ids=ids, sampling_params=params, **fields)
        )

    def append(self, row: int, *token_ids: int) -> None:
        for token_id in token_ids:
            self.tokens[row, self.num_tokens[row]] = token_id
            self.num_tokens[row] += 1

    def build(
        self,
        *rows: int,
        padded: int | None = None,
        widen: Callable[[SamplingKind], SamplingKind] = lambda k: k,
    ) -> HostSampling:
        index = np.array(rows, dtype=np.int32)
        return self.state.build(
            index, padded or len(rows), self.tokens, self.num_prompt, self.num_tokens, widen
        )

    def sample(self, *rows: int) -> list[int]:
        """Sample the next token of each row from fixed logits and append it."""
        host = self.build(*rows)
        inputs = {
            name: torch.from_numpy(array)
            for name in SAMPLING_ARRAYS
            if (array := getattr(host, name)) is not None
        }
        logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(0)).repeat(len(rows), 1)
        ids: list[int] = ReferenceSampler().sample(logits, inputs, host.kind).tolist()
        for row, token_id in zip(rows, ids, strict=True):
            self.append(row, token_id)
        return ids


PENALISED = SamplingParams(presence_penalty=1.5, frequency_penalty=0.5, repetition_penalty=1.2)


def test_options_are_gathered_in_the_order_of_the_step() -> None:
    batch = Batch()
    batch.add(2, SamplingParams(temperature=0.5, top_k=9, top_p=0.8, min_p=0.1), [1])
    batch.add(5, SamplingParams(temperature=2.0), [1])
    host = batch.build(5, 2)
    assert host.kind == SamplingKind(all_greedy=False, filters=True)
    np.testing.assert_allclose(host.temperature, [2.0, 0.5])
    np.testing.assert_array_equal(host.top_k, [VOCAB, 9])
    np.testing.assert_allclose(host.top_p, [1.0, 0.8])
    np.testing.assert_allclose(host.min_p, [0.0, 0.1])
    assert host.penalties is None
    assert host.bias is None


def test_rows_of_padding_are_greedy_and_neutral() -> None:
    batch = Batch()
    batch.add(0, replace(PENALISED, top_p=0.5, logit_bias={3: 1.0}), [1, 2])
    host = batch.build(0, padded=3)
    assert host.temperature.tolist() == [1, 0, 0]
    assert host.top_k.tolist() == [VOCAB] * 3
    assert host.top_p.tolist() == [0.5, 1, 1]
    assert host.noise_keys[1:].tolist() == [[0, 0]] * 2
    assert host.penalties is not None
    assert host.penalties[1:].tolist() == [[1, 0, 0]] * 2
    for dense in (host.prompt_mask, host.output_counts, host.bias):
        assert dense is not None
        assert dense.shape == (3, VOCAB)
        assert not dense[1:].any()


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0, top_p=0.5), SamplingParams(top_k=1, top_p=0.5)]
)
def test_a_row_without_choice_is_greedy_and_has_no_filters(params: SamplingParams) -> None:
    batch = Batch()
    batch.add(0, params, [1])
    assert batch.build(0).kind == SamplingKind(all_greedy=True)


def test_a_top_k_beyond_the_vocabulary_keeps_all() -> None:
    batch = Batch()
    batch.add(0, SamplingParams(top_k=1000), [1])
    assert batch.build(0).kind == SamplingKind(all_greedy=False)


def test_noise_keys_are_those_of_seed_stream_and_number_of_tokens() -> None:
    batch = Batch()
    batch.add(3, SamplingParams(), [5, 6, 7], seed=2**64 - 3, stream=2)
    for position in range(3, 90):
        expected = keys(1, seed=2**64 - 3, stream=2, first_position=position)
        np.testing.assert_array_equal(batch.build(3).noise_keys, expected)
        batch.append(3, 1)


def test_a_row_given_to_another_request_has_its_keys() -> None:
    batch = Batch()
    batch.add(0, SamplingParams(), [1, 2], seed=1)
    batch.build(0)
    batch.state.remove(0)
    batch.add(0, SamplingParams(), [1, 2], seed=2)
    np.testing.assert_array_equal(batch.build(0).noise_keys, keys(1, seed=2, first_position=2))


def test_a_wider_sampler_gets_neutral_inputs() -> None:
    batch = Batch()
    batch.add(0, SamplingParams(temperature=0), [1])
    wide = SamplingKind(all_greedy=False, penalties=True, bias=True, filters=True)
    host = batch.build(0, padded=2, widen=lambda kind: wide)
    assert host.kind == wide
    assert host.penalties is not None
    assert host.penalties.tolist() == [[1, 0, 0]] * 2
    for dense in (host.prompt_mask, host.output_counts, host.bias):
        assert dense is not None
        assert not dense.any()


def test_case_18_penalties_see_every_token_up_to_the_last() -> None:
    batch = Batch()
    batch.add(1, PENALISED, [4, 5, 5])
    for token_id in (9, 9, 4):
        batch.build(1)
        batch.append(1, token_id)
    host = batch.build(1)
    assert host.prompt_mask is not None
    assert host.output_counts is not None
    assert np.flatnonzero(host.prompt_mask[0]).tolist() == [4, 5]
    assert {int(i): int(host.output_counts[0, i]) for i in np.flatnonzero(host.output_counts[0])} == {
        9: 2,
        4: 1,
    }


def test_a_resumed_request_is_counted_from_its_prompt_on() -> None:
    batch = Batch()
    batch.add(1, PENALISED, [4], output=(8, 8))
    batch.build(1)
    batch.state.remove(1)
    batch.add(6, PENALISED, [4], output=(8, 8, 3))
    host = batch.build(6)
    assert host.output_counts is not None
    assert host.output_counts[0, [8, 3]].tolist() == [2, 1]


def test_case_18_a_penalised_request_that_joins_later_does_not_disturb_others() -> None:
    alone, shared = Batch(), Batch()
    for batch in (alone, shared):
        batch.add(0, replace(PENALISED, seed=1), [1, 2, 3])
    expected = [alone.sample(0)[0] for _ in range(20)]
    got = [shared.sample(0)[0] for _ in range(8)]
    shared.add(4, PENALISED, [9, 9], seed=77)
    got += [shared.sample(4, 0)[1] for _ in range(6)]
    shared.state.remove(4)
    got += [shared.sample(0)[0] for _ in range(6)]
    assert got == expected


def test_case_20_steps_in_any_order_and_company_give_each_request_its_own_tokens() -> None:
    params = [
        SamplingParams(),
        SamplingParams(temperature=0),
        PENALISED,
        SamplingParams(top_p=0.7, frequency_penalty=1.0),
        SamplingParams(top_k=5, logit_bias={3: 5.0, 4: -5.0}),
        SamplingParams(min_tokens=10, presence_penalty=-1.0),
    ]
    expected = {}
    for row, options in enumerate(params):
        alone = Batch()
        alone.add(3, options, [row, 1], seed=row, stream=row)
        expected[row] = [alone.sample(3)[0] for _ in range(15)]

    together = Batch()
    for row, options in enumerate(params):
        together.add(row, options, [row, 1], seed=row, stream=row)
    got: dict[int, list[int]] = {row: [] for row in range(len(params))}
    random = np.random.default_rng(0)
    while any(len(tokens) < 15 for tokens in got.values()):
        rows = [
            r for r in random.permutation(len(params)).tolist() if len(got[r]) < 15 and random.random() < 0.7
        ]
        if rows:
            for row, token_id in zip(rows, together.sample(*rows), strict=True):
                got[row].append(token_id)
    assert got == expected


def test_several_rows_of_a_request_have_the_noise_of_their_positions() -> None:
    batch, alone = Batch(), Batch()
    for each in (batch, alone):
        each.add(1, SamplingParams(), [4, 5], seed=9)
        each.add(3, SamplingParams(), [4, 5, 6], seed=8, stream=2)
    expected: dict[int, list[np.ndarray]] = {1: [], 3: []}
    for _ in range(90):
        for row, found in expected.items():
            found.append(alone.build(row).noise_keys[0].copy())
            alone.append(row, 7)

    num_appended = 0
    # Windows of keys end within, before and after the rows of a step.
    for width in (1, 31, 32, 2, 5, 8, 8, 1):
        rows = np.array([3] + [1] * width, dtype=np.int32)
        nth = np.array([0, *range(width)], dtype=np.int32)
        host = batch.state.build(
            rows, len(rows) + 1, batch.tokens, batch.num_prompt, batch.num_tokens, lambda k: k, nth
        )
        np.testing.assert_array_equal(host.noise_keys[0], expected[3][num_appended])
        np.testing.assert_array_equal(host.noise_keys[1:-1], expected[1][num_appended : num_appended + width])
        for row in (1, 3):
            batch.append(row, *[7] * (width // 2 + 1))
        num_appended += width // 2 + 1


def test_no_request_has_more_drafts_than_there_are_keys_for() -> None:
    assert MAX_DRAFT_TOKENS + 1 <= MAX_ROWS
