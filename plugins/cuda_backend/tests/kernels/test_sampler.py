"""The sampler in Triton chooses what core's reference chooses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from core_engine_cuda import sampler as module
from core_engine_cuda.kernels.token_variants import CAPACITY
from core_engine_cuda.sampler import TritonSampler, num_splits
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_case import (
    FILTERED,
    GREEDY,
    KINDS,
    OPTIONS,
    PLAIN,
    assert_as_reference,
    keys,
    kind_of,
    logits_without_choice,
    penalties_and_bias,
    random_logits,
    sampler_inputs,
)

from core_engine.plugin.runtime import ReferenceSampler, SamplingKind

NUM_ROWS = 3
OURS, REFERENCE = TritonSampler(), ReferenceSampler()


@pytest.mark.parametrize("shape", ["flat", "peaked", "ties", "zeros"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_tokens_are_the_references(shape: str, options: dict[str, Any]) -> None:
    dtype = torch.bfloat16 if shape in ("peaked", "zeros") else torch.float32
    assert_as_reference(OURS, random_logits(shape, NUM_ROWS, 700).to(dtype), kind_of(options), **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@KINDS
def test_any_type_of_logits_works(dtype: torch.dtype, kind: SamplingKind) -> None:
    assert_as_reference(
        OURS, random_logits("flat", NUM_ROWS, 300).to(dtype), kind, top_p=0.6 if kind.filters else 1.0
    )


@pytest.mark.parametrize("vocab_size", [1, 2, 1023, 1024, 1025, 3000])
@KINDS
def test_any_vocabulary_size_works(vocab_size: int, kind: SamplingKind) -> None:
    logits = random_logits("flat", 3, vocab_size)
    assert_as_reference(OURS, logits, kind, top_p=0.8 if kind.filters else 1.0)


@pytest.mark.parametrize("options", [{}, {"top_k": 50, "top_p": 0.95}], ids=str)
def test_a_vocabulary_of_a_real_size_works(options: dict[str, Any]) -> None:
    logits = random_logits("flat", 1, 49_152).bfloat16()
    assert_as_reference(OURS, logits, FILTERED if options else PLAIN, **options)


@pytest.mark.parametrize("options", [{"top_k": 100}, {"top_p": 0.9}, {"top_k": 300, "top_p": 0.9}], ids=str)
def test_a_row_with_more_candidates_than_are_gathered_is_searched_itself(options: dict[str, Any]) -> None:
    logits = random_logits("flat", 1, CAPACITY + 1000)
    assert_as_reference(OURS, logits, FILTERED, temperature=2.0, **options)


def test_rows_of_different_options_do_not_disturb_each_other() -> None:
    columns = {
        "temperature": np.tile([0, 1, 0.5, 2], 3),
        "top_k": np.tile([900, 5, 900], 4),
        "top_p": np.tile([0.5, 1], 6),
        "min_p": np.tile([0, 0, 0.1, 0], 3),
    }
    assert_as_reference(OURS, random_logits("flat", 12, 900), FILTERED, **columns)


LOGITS = st.one_of(
    st.sampled_from([-0.0, 0.0, 1.0, 2.0, -1.5, -30.0, float("-inf")]),
    st.floats(-40, 40, width=16),
)
ROWS = st.integers(1, 40).flatmap(
    lambda size: st.lists(st.lists(LOGITS, min_size=size, max_size=size), min_size=1, max_size=3)
)


@settings(max_examples=25, deadline=None)
@given(
    rows=ROWS,
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([1, 2, 3, 7, 1000]),
    top_p=st.sampled_from([0.0137, 0.371, 0.6133, 0.9137, 1.0]),
    min_p=st.sampled_from([0.0, 0.0137, 0.371]),
    seed=st.integers(0, 2**32),
)
def test_rows_of_any_kind_give_the_references_tokens(
    rows: list[list[float]],
    dtype: torch.dtype,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
) -> None:
    assert_as_reference(
        OURS,
        torch.tensor(rows).to(dtype),
        FILTERED,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        noise_keys=keys(len(rows), seed=seed),
    )


def test_top_k_and_top_p_cut_equal_logits_by_id() -> None:
    # Of ten equal tokens top_p 0.45 keeps five, of which top_k keeps all or fewer.
    logits = torch.zeros(8, 12)
    logits[:, 4:6] = -1000
    for top_k, top_p, expected in ((2, 1.0, {0, 1}), (12, 0.45, {0, 1, 2, 3, 6}), (7, 0.35, {0, 1, 2})):
        inputs = sampler_inputs(8, 12, top_k=top_k, top_p=top_p)
        tokens = OURS.sample(logits, inputs, FILTERED).tolist()
        assert set(tokens) <= expected
        assert tokens == REFERENCE.sample(logits, inputs, FILTERED).tolist()


def test_top_p_is_a_share_of_what_min_p_left() -> None:
    # min_p leaves the first two tokens, of whose 0.8 the first alone is more than 0.6.
    logits = torch.tensor([0.5, 0.3, 0.05, 0.05, 0.05, 0.05]).log().expand(8, 6)
    inputs = sampler_inputs(8, 6, min_p=0.3, top_p=0.6)
    assert OURS.sample(logits, inputs, FILTERED).tolist() == [0] * 8


def test_many_tokens_far_below_the_most_likely_one_win_as_often_as_they_should() -> None:
    logits = -10 - torch.arange(2000.0).div(4000).expand(6, 2000)
    logits[:, 7] = 0.0
    assert_as_reference(OURS, logits, FILTERED, temperature=1.5, top_k=1900)
    tokens = OURS.sample(logits, sampler_inputs(6, 2000, temperature=1.5, top_k=1900), FILTERED).tolist()
    assert set(tokens) > {7}


def test_the_smallest_temperature_does_not_overflow() -> None:
    logits = random_logits("flat", NUM_ROWS, 500) * 1000
    for kind in (PLAIN, FILTERED):
        assert_as_reference(OURS, logits, kind, temperature=1e-30, top_p=0.9 if kind.filters else 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_greedy_takes_the_lowest_id_of_equal_logits(dtype: torch.dtype) -> None:
    logits = torch.full((2, 3000), -3, dtype=dtype)
    logits[0, [1300, 1301, 2900]] = 5
    assert OURS.sample(logits, sampler_inputs(2, 3000), GREEDY).tolist() == [1300, 0]


@KINDS
def test_forbidden_tokens_are_never_taken(kind: SamplingKind) -> None:
    bias = np.zeros((NUM_ROWS, 500), dtype=np.float32)
    bias[:, 1::2] = -np.inf
    bias[0] = -np.inf
    kind = SamplingKind(all_greedy=kind.all_greedy, filters=kind.filters, bias=True)
    assert_as_reference(
        OURS, random_logits("flat", NUM_ROWS, 500), kind, bias=bias, top_p=0.9 if kind.filters else 1.0
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@KINDS
def test_rows_without_a_finite_choice_give_no_token(dtype: torch.dtype, kind: SamplingKind) -> None:
    logits, without = logits_without_choice(1200)
    logits, columns = logits.to(dtype), {"top_p": 0.9 if kind.filters else 1.0}
    assert_as_reference(OURS, logits, kind, **columns)
    tokens = OURS.sample(logits, sampler_inputs(8, 1200, **columns), kind)
    assert [row for row in range(8) if tokens[row] < 0] == without


def test_bias_and_penalties_come_first() -> None:
    kind = SamplingKind(all_greedy=False, penalties=True, bias=True, filters=True)
    logits = random_logits("flat", NUM_ROWS, 700).bfloat16()
    assert_as_reference(OURS, logits, kind, top_p=0.9, **penalties_and_bias(700))


@pytest.mark.parametrize("kind", [PLAIN, FILTERED], ids=["plain", "filtered"])
def test_a_draw_depends_neither_on_the_batch_nor_on_the_splits(
    monkeypatch: pytest.MonkeyPatch, kind: SamplingKind
) -> None:
    logits, row_keys = random_logits("ties", 4, 2600).bfloat16(), keys(4)
    top_p = 0.95 if kind.filters else 1.0

    def draw(rows: list[int]) -> list[int]:
        inputs = sampler_inputs(len(rows), 2600, noise_keys=row_keys[rows], top_p=top_p)
        return OURS.sample(logits[rows], inputs, kind).tolist()

    together = draw([0, 1, 2, 3])
    assert draw([3, 1]) == [together[3], together[1]]
    monkeypatch.setattr(module, "_PROGRAMS", 4)
    assert num_splits(4, 2600) == 1
    assert draw([0, 1, 2, 3]) == together


def test_logits_need_not_be_contiguous() -> None:
    logits = random_logits("flat", NUM_ROWS, 600)
    for view in (logits[:, 100:400], logits[:, 101:400], logits.T.contiguous().T[:, :300], logits[::2, :300]):
        assert_as_reference(OURS, view, PLAIN)


@pytest.mark.parametrize(
    ("num_rows", "vocab_size", "splits"), [(1, 128_256, 64), (64, 128_256, 16), (3000, 9, 1), (2, 1500, 2)]
)
def test_few_rows_are_split_over_many_programs(num_rows: int, vocab_size: int, splits: int) -> None:
    assert num_splits(num_rows, vocab_size) == splits
