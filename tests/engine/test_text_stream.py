from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import SPECIAL, byte_level

from core_engine.engine.text_stream import TextDelta, TextStream
from core_engine.sampling.params import SamplingParams

BYTES = byte_level()
END = BYTES.convert_tokens_to_ids(SPECIAL)


def stream(**params: Any) -> TextStream:
    return TextStream(BYTES, [97], SamplingParams(**params))


def test_tokens_become_text() -> None:
    text = stream()
    assert text.append([97, 98]) == TextDelta("ab", 2)
    assert text.append([99], finished=True) == TextDelta("c", 1)


def test_case_24_of_several_tokens_in_one_step_those_after_the_stop_do_not_count() -> None:
    delta = stream(stop="STOP").append(list(b"go STOP on"))
    assert delta == TextDelta("go ", len("go STOP"), "STOP")


def test_case_24_the_stop_that_ends_first_wins_within_a_step() -> None:
    assert stream(stop=["def", "cd", "zz"]).append(list(b"abcdef")) == TextDelta("ab", 4, "cd")


def test_case_23_a_stop_across_steps_is_cut_exactly() -> None:
    text = stream(stop=["\n\nQ:"])
    assert text.append(list(b"yes\n")) == TextDelta("yes", 4)
    assert text.append(list(b"\nQ")) == TextDelta("", 2)
    assert text.append(list(b": no")) == TextDelta("", 1, "\n\nQ:")


def test_a_stop_in_the_middle_of_a_token_cuts_the_token() -> None:
    # Id 257 is "th".
    assert stream(stop="xt").append([120, 257]) == TextDelta("", 2, "xt")


def test_case_23_held_text_comes_with_the_end() -> None:
    text = stream(stop="STOP")
    assert text.append(list(b"a ST")) == TextDelta("a ", 4)
    assert text.append([], finished=True) == TextDelta("ST", 0)


def test_half_a_character_comes_with_the_end() -> None:
    assert stream().append([97, 0xF0, 0x9F], finished=True) == TextDelta("a\ufffd", 3)


def test_a_stop_that_the_last_flush_completes_counts() -> None:
    assert stream(stop="a\ufffd").append([97, 0xF0], finished=True) == TextDelta("", 2, "a\ufffd")


def test_case_21_a_stop_inside_the_budget_beats_the_cap() -> None:
    # The engine core reports the cap with the same token that completes the stop string.
    assert stream(stop="bc").append(list(b"abc"), finished=True).stop == "bc"


def test_case_21_no_stop_string_counts_before_min_tokens() -> None:
    text = stream(stop="b", min_tokens=5)
    assert text.append(list(b"abab")) == TextDelta("abab", 4)
    assert text.append(list(b"b")) == TextDelta("", 1, "b")


def test_a_stop_tokens_text_is_left_out() -> None:
    assert stream().append([97, 98], finished=True, ends_with_stop_token=True) == TextDelta("a", 2)


def test_a_stop_tokens_text_is_kept_when_asked() -> None:
    text = stream(include_stop_str_in_output=True)
    assert text.append([97, 98], finished=True, ends_with_stop_token=True) == TextDelta("ab", 2)


def test_special_tokens_show_when_asked() -> None:
    assert stream(skip_special_tokens=False).append([97, END, 98]).text == f"a{SPECIAL}b"


def test_sequences_of_one_request_do_not_share_text() -> None:
    params = SamplingParams(n=2, stop="xy")
    first, second = (TextStream(BYTES, [97], params) for _ in range(2))
    first.append([120])
    assert second.append([121]) == TextDelta("y", 1)
    assert first.append([121]).stop == "xy"


@pytest.mark.real_model
@pytest.mark.parametrize("step", [1, 2, 7, 100])
def test_a_stop_is_found_however_many_tokens_come_at_once(smollm2: Path, step: int) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    ids = tokenizer("The sky 😀 is blue.\n\nQuestion: why? \n\nQuestion: who?")["input_ids"]
    text = TextStream(tokenizer, [], SamplingParams(stop=["\n\nQuestion:", "\n\nAnswer:"]))
    shown, count = "", 0
    for start in range(0, len(ids), step):
        delta = text.append(ids[start : start + step])
        shown += delta.text
        count += delta.num_tokens
        if delta.stop is not None:
            break
    assert shown == "The sky 😀 is blue."
    assert tokenizer.decode(ids[:count]).endswith("\n\nQuestion:")
