"""Padded shapes: the smallest that holds a step, all of them known before serving."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.worker.bucket_shapes import BucketShapes, next_power_of_two, power_of_two_buckets
from core_engine.worker.shape_policy import ExactShapes, SamplingKind, StepKind, StepShape


def shapes_for(tokens: int, seqs: int) -> BucketShapes:
    return BucketShapes(max_num_batched_tokens=tokens, max_num_seqs=seqs, max_logprobs=20)


@pytest.mark.parametrize(
    ("smallest", "limit", "buckets"),
    [(1, 1, (1,)), (1, 8, (1, 2, 4, 8)), (1, 6, (1, 2, 4, 6)), (16, 64, (16, 32, 64)), (16, 8, (8,))],
)
def test_buckets_double_up_to_the_limit(smallest: int, limit: int, buckets: tuple[int, ...]) -> None:
    assert power_of_two_buckets(smallest, limit) == buckets


@pytest.mark.parametrize(("number", "power"), [(1, 1), (2, 2), (3, 4), (16, 16), (17, 32)])
def test_the_next_power_of_two_is_the_number_itself_where_it_is_one(number: int, power: int) -> None:
    assert next_power_of_two(number) == power


def test_decode_steps_pad_their_requests() -> None:
    assert shapes_for(256, 64).pad(5, 5, StepKind.DECODE) == StepShape(8, 8, StepKind.DECODE)


def test_mixed_steps_pad_their_tokens_and_have_room_for_every_request() -> None:
    assert shapes_for(256, 64).pad(100, 3, StepKind.MIXED) == StepShape(128, 64, StepKind.MIXED)
    assert shapes_for(256, 64).pad(20, 3, StepKind.MIXED) == StepShape(32, 32, StepKind.MIXED)


limits = st.tuples(st.integers(1, 600), st.integers(1, 100))


@given(limits, st.data())
def test_a_padded_step_is_prepared_holds_the_step_and_keeps_the_limits(
    limit: tuple[int, int], data: st.DataObject
) -> None:
    max_tokens, max_seqs = limit
    shapes = shapes_for(max_tokens, max_seqs)
    num_reqs = data.draw(st.integers(1, min(max_seqs, max_tokens)))
    num_tokens = data.draw(st.integers(num_reqs, max_tokens))
    kind = StepKind.DECODE if num_tokens == num_reqs else StepKind.MIXED
    padded = shapes.pad(num_tokens, num_reqs, kind)
    assert padded in shapes.warm_up_shapes()
    assert num_tokens <= padded.num_tokens <= max_tokens
    assert num_reqs <= padded.num_reqs <= min(max_seqs, max_tokens)
    assert padded.kind is kind


@given(limits)
def test_every_prepared_shape_can_come_up(limit: tuple[int, int]) -> None:
    shapes = shapes_for(*limit)
    assert len(set(shapes.warm_up_shapes())) == len(shapes.warm_up_shapes())
    for shape in shapes.warm_up_shapes():
        assert shapes.pad(shape.num_tokens, shape.num_reqs, shape.kind) == shape


@pytest.mark.parametrize(
    ("num_tokens", "num_reqs", "kind"),
    [(257, 1, StepKind.MIXED), (65, 65, StepKind.DECODE), (200, 65, StepKind.MIXED)],
)
def test_a_step_that_no_shape_holds_is_refused(num_tokens: int, num_reqs: int, kind: StepKind) -> None:
    with pytest.raises(ValueError, match="no prepared shape holds"):
        shapes_for(256, 64).pad(num_tokens, num_reqs, kind)


kinds = st.builds(
    SamplingKind,
    all_greedy=st.booleans(),
    penalties=st.booleans(),
    bias=st.booleans(),
    filters=st.booleans(),
)


@given(kinds)
def test_a_widened_sampler_is_prepared_and_serves_the_kind(kind: SamplingKind) -> None:
    shapes = shapes_for(256, 64)
    wide = shapes.widen(kind)
    assert wide in shapes.warm_up_sampling_kinds()
    assert wide.penalties >= kind.penalties
    assert wide.bias >= kind.bias
    assert wide.filters >= kind.filters
    assert wide.all_greedy <= kind.all_greedy


def test_a_greedy_step_pays_for_nothing_else() -> None:
    assert shapes_for(256, 64).widen(SamplingKind(all_greedy=True)) == SamplingKind(all_greedy=True)


@pytest.mark.parametrize("asked", [0, 3, 20])
def test_every_step_with_log_probabilities_reports_the_same_number(asked: int) -> None:
    assert shapes_for(256, 64).widen_logprobs(asked) == 20


def test_free_shapes_report_what_was_asked_for() -> None:
    assert ExactShapes().widen_logprobs(3) == 3


def test_listed_buckets_take_the_place_of_the_powers_of_two() -> None:
    shapes = BucketShapes(
        max_num_batched_tokens=100,
        max_num_seqs=10,
        max_logprobs=0,
        token_buckets=(24, 100, 200),
        request_buckets=(1, 4),
    )
    assert shapes.token_buckets == (24, 100)
    assert shapes.request_buckets == (1, 4, 10)
    assert shapes.pad(2, 2, StepKind.DECODE).num_reqs == 4
    assert shapes.pad(25, 2, StepKind.MIXED).num_tokens == 100
