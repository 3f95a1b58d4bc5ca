"""The planner: every step finds the smallest bucket that holds it, and none goes past the budget."""

from __future__ import annotations

import pytest
from core_engine_tpu.buckets import request_buckets, token_buckets
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import ConfigError
from core_engine.plugin.runtime import BucketShapes, StepKind

rising = st.lists(st.integers(1, 700), min_size=1, max_size=8, unique=True).map(sorted)


def listed(sizes: list[int] | None) -> str | None:
    return None if sizes is None else ",".join(map(str, sizes))


@given(st.none() | rising, st.none() | rising, st.integers(1, 600), st.integers(1, 80), st.data())
def test_case_03_every_step_gets_the_smallest_bucket_that_holds_it(
    tokens: list[int] | None, requests: list[int] | None, budget: int, seqs: int, data: st.DataObject
) -> None:
    shapes = BucketShapes(
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        max_logprobs=20,
        token_buckets=token_buckets(listed(tokens)),
        request_buckets=request_buckets(listed(requests)),
    )
    num_reqs = data.draw(st.integers(1, min(seqs, budget)))
    num_tokens = data.draw(st.integers(num_reqs, budget))
    mixed = shapes.pad(num_tokens, num_reqs, StepKind.MIXED)
    assert mixed.num_tokens == min(size for size in shapes.token_buckets if size >= num_tokens) <= budget
    decode = shapes.pad(num_reqs, num_reqs, StepKind.DECODE)
    assert decode.num_reqs == min(size for size in shapes.request_buckets if size >= num_reqs) <= seqs
    assert {mixed, decode} <= set(shapes.warm_up_shapes())


def test_without_a_list_they_are_powers_of_two() -> None:
    assert token_buckets(None) == (16, 32, 64, 128, 256, 512)
    assert request_buckets(None) is None


def test_a_list_is_read() -> None:
    assert token_buckets(" 24, 100 ,512") == (24, 100, 512)
    assert request_buckets("8") == (8,)


@pytest.mark.parametrize("text", ["", "a", "16,", "16,16", "32,16", "0,8", "-4", "1.5", "16;32"])
def test_what_is_no_rising_list_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"token_buckets must be .*such as 16,64,256; got "):
        token_buckets(text)
