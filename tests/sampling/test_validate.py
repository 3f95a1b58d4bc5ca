from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from core_engine.errors import InvalidRequest, UnsupportedFeature
from core_engine.plugin import Capabilities
from core_engine.sampling.params import SamplingParams
from core_engine.sampling.validate import MAX_N, check_against_model

WRONG = [
    ("n", 0, "n must be an integer between 1 and 128, got 0"),
    ("n", MAX_N + 1, "n must be an integer between 1 and 128, got 129"),
    ("n", 1.0, "n must be an integer between 1 and 128, got 1.0"),
    ("max_tokens", 0, "max_tokens must be an integer between 1 and 2147483647 or None, got 0"),
    ("min_tokens", -1, "min_tokens must be an integer between 0 and 2147483647, got -1"),
    ("temperature", 3.5, "temperature must be between 0 and 2, got 3.5"),
    ("temperature", -0.1, "temperature must be between 0 and 2, got -0.1"),
    ("temperature", "hot", "temperature must be a number between 0 and 2, got 'hot'"),
    ("temperature", None, "temperature must be a number between 0 and 2, got None"),
    ("temperature", True, "temperature must be a number between 0 and 2, got True"),
    ("temperature", float("nan"), "temperature must be between 0 and 2, got nan"),
    ("temperature", float("inf"), "temperature must be between 0 and 2, got inf"),
    ("top_k", -2, "top_k must be an integer between -1 and 2147483647, got -2"),
    ("top_k", 1.5, "top_k must be an integer between -1 and 2147483647, got 1.5"),
    ("top_p", 0, "top_p must be above 0 and at most 1, got 0"),
    ("top_p", 1.1, "top_p must be above 0 and at most 1, got 1.1"),
    ("min_p", 1.01, "min_p must be between 0 and 1, got 1.01"),
    ("repetition_penalty", 0, "repetition_penalty must be above 0 and at most 10, got 0"),
    ("presence_penalty", 2.5, "presence_penalty must be between -2 and 2, got 2.5"),
    ("frequency_penalty", -2.5, "frequency_penalty must be between -2 and 2, got -2.5"),
    ("seed", -1, "seed must be an integer between 0 and 2**64 - 1 or None, got -1"),
    ("seed", 2**64, f"seed must be an integer between 0 and 2**64 - 1 or None, got {2**64}"),
    ("logprobs", -1, "logprobs must be an integer of at least 0 or None, got -1"),
    ("prompt_logprobs", True, "prompt_logprobs must be an integer of at least 0 or None, got True"),
    ("stop", "", "stop must hold strings that are not empty, got ''"),
    ("stop", ["a", 3], "stop must hold strings that are not empty, got 3"),
    ("stop", 7, "stop must be a list of strings, got 7"),
    ("bad_words", "word", "bad_words must be a list of strings, got 'word'"),
    ("stop_token_ids", [-1], "each of stop_token_ids must be an integer between 0 and 2147483647, got -1"),
    ("stop_token_ids", "12", "stop_token_ids must be a list of token ids, got '12'"),
    ("logit_bias", {5: 101}, "logit_bias of token 5 must be between -100 and 100, got 101"),
    ("logit_bias", {5: float("nan")}, "logit_bias of token 5 must be between -100 and 100, got nan"),
    ("logit_bias", {"5": 1}, "each token id of logit_bias must be an integer between 0 and 2147483647"),
    ("logit_bias", [5], "logit_bias must map token ids to numbers between -100 and 100, got [5]"),
    ("ignore_eos", 1, "ignore_eos must be True or False, got 1"),
]


@pytest.mark.parametrize(("field", "value", "message"), WRONG)
def test_a_wrong_value_is_refused_by_field_range_and_value(field: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


def test_min_tokens_may_not_exceed_max_tokens() -> None:
    with pytest.raises(InvalidRequest, match=r"min_tokens must be at most max_tokens \(3\), got 5"):
        SamplingParams(min_tokens=5, max_tokens=3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0),
        ("temperature", 2),
        ("top_p", 1),
        ("min_p", 1),
        ("seed", 2**64 - 1),
        ("n", MAX_N),
        ("logit_bias", {0: -100}),
    ],
)
def test_the_ends_of_a_range_are_allowed(field: str, value: Any) -> None:
    assert getattr(SamplingParams(**{field: value}), field) == value


def test_one_stop_string_becomes_a_tuple_of_one() -> None:
    assert SamplingParams(stop="\n\n").stop == ("\n\n",)


def test_lists_become_tuples() -> None:
    params = SamplingParams(stop=["a"], stop_token_ids=[1, 2], bad_words=["b"])
    assert (params.stop, params.stop_token_ids, params.bad_words) == (("a",), (1, 2), ("b",))


def test_top_k_of_minus_one_keeps_all_like_zero() -> None:
    assert SamplingParams(top_k=-1).top_k == 0


def test_numpy_numbers_become_plain_ones() -> None:
    params = SamplingParams(temperature=np.float32(0.5), max_tokens=np.int64(7))  # type: ignore[arg-type]
    assert type(params.temperature) is float
    assert type(params.max_tokens) is int


def test_the_bias_is_a_copy() -> None:
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[1] = 1e9
    assert params.logit_bias == {1: 2.0}


FULL = Capabilities(max_logprobs=5, prompt_logprobs=True)


def check(params: SamplingParams, capabilities: Capabilities = FULL) -> None:
    check_against_model(params, 100, capabilities, "cpu")


def test_what_the_model_and_backend_offer_passes() -> None:
    check(SamplingParams(logprobs=5, prompt_logprobs=0, stop_token_ids=[99], logit_bias={0: 1.0}))


@pytest.mark.parametrize("field", ["stop_token_ids", "logit_bias"])
def test_ids_outside_the_vocabulary_are_refused(field: str) -> None:
    value: Any = [100] if field == "stop_token_ids" else {100: 1.0}
    with pytest.raises(
        InvalidRequest, match=f"{field} must hold token ids between 0 and 99, got 100"
    ) as caught:
        check(SamplingParams(**{field: value}))
    assert caught.value.param == field


def test_more_logprobs_than_the_backend_has_names_it() -> None:
    with pytest.raises(UnsupportedFeature, match="logprobs must be at most 5 on the cpu backend, got 6"):
        check(SamplingParams(logprobs=6))


def test_logprobs_never_exceed_the_vocabulary() -> None:
    with pytest.raises(UnsupportedFeature, match="at most 100"):
        check(SamplingParams(logprobs=101), Capabilities(max_logprobs=1000))


def test_logprobs_without_support_are_refused_even_for_the_token_alone() -> None:
    with pytest.raises(UnsupportedFeature, match="the cpu backend offers no log-probabilities"):
        check(SamplingParams(logprobs=0), Capabilities())


def test_prompt_logprobs_without_support_are_refused() -> None:
    with pytest.raises(UnsupportedFeature, match="prompt_logprobs was asked for, but the cpu backend"):
        check(SamplingParams(prompt_logprobs=1), Capabilities(max_logprobs=5))
