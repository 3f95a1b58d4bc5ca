"""Decode steps are padded to what was captured; all else is as it is."""

from __future__ import annotations

import pytest
from core_engine_cuda.shapes import CapturedShapes
from hypothesis import given
from hypothesis import strategies as st

from core_engine.plugin.runtime import SamplingKind, StepKind, StepShape

SHAPES = CapturedShapes((1, 2, 4, 8), max_logprobs=5)


@given(st.integers(1, 8))
def test_decode_steps_take_the_next_captured_size(num_reqs: int) -> None:
    shape = SHAPES.pad(num_reqs, num_reqs, StepKind.DECODE)
    assert shape in SHAPES.warm_up_shapes()
    assert num_reqs <= shape.num_reqs < max(2, 2 * num_reqs)


def test_larger_decode_steps_are_exact() -> None:
    assert SHAPES.pad(9, 9, StepKind.DECODE) == StepShape(9, 9, StepKind.DECODE)


@given(st.integers(1, 8), st.integers(1, 100))
def test_mixed_steps_are_exact(num_reqs: int, more: int) -> None:
    assert SHAPES.pad(num_reqs + more, num_reqs, StepKind.MIXED) == StepShape(
        num_reqs + more, num_reqs, StepKind.MIXED
    )


def test_the_largest_is_captured_first() -> None:
    assert [shape.num_reqs for shape in SHAPES.warm_up_shapes()] == [8, 4, 2, 1]


@pytest.mark.parametrize("all_greedy", [True, False])
@pytest.mark.parametrize("filters", [True, False])
def test_samplers_without_bias_and_penalties_are_captured(all_greedy: bool, filters: bool) -> None:
    kind = SHAPES.widen(SamplingKind(all_greedy=all_greedy, filters=filters))
    assert kind in SHAPES.warm_up_sampling_kinds()
    assert kind.all_greedy == all_greedy


@pytest.mark.parametrize("part", ["penalties", "bias"])
def test_other_samplers_stay_what_they_are(part: str) -> None:
    kind = SamplingKind(all_greedy=True, filters=True, **{part: True})
    assert SHAPES.widen(kind) == kind


def test_one_number_of_logprobs_serves_all() -> None:
    assert SHAPES.widen_logprobs(1) == 5
