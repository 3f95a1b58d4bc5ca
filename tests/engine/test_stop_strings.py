from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from core_engine.engine.stop_strings import StopStrings


def read(parts: Sequence[str], *stops: str, include: bool = False) -> tuple[str, str | None]:
    """Feed ``parts`` until a stop; return all that was shown and the stop."""
    strings = StopStrings(stops, include_in_output=include)
    shown = ""
    for part in parts:
        text, stop = strings.push(part)
        shown += text
        if stop is not None:
            return shown, stop
    return shown + strings.flush(), None


def test_without_stop_strings_text_passes_at_once() -> None:
    assert StopStrings((), include_in_output=False).push("abc") == ("abc", None)


def test_case_23_a_stop_across_parts_is_cut_off_exactly() -> None:
    assert read(["One S", "TO", "P two"], "STOP") == ("One ", "STOP")


def test_a_stop_is_kept_when_asked_and_nothing_after_it() -> None:
    assert read(["One S", "TO", "P two"], "STOP", include=True) == ("One STOP", "STOP")


def test_case_23_a_possible_beginning_is_held_back_and_then_shown() -> None:
    strings = StopStrings(["STOP"], include_in_output=False)
    assert strings.push("a ST") == ("a ", None)
    assert strings.push("O") == ("", None)
    assert strings.push("RE") == ("STORE", None)


def test_case_23_a_beginning_at_the_end_is_flushed_once() -> None:
    strings = StopStrings(["STOP"], include_in_output=False)
    strings.push("a STO")
    assert strings.flush() == "STO"
    assert strings.flush() == ""


def test_case_24_the_stop_that_ends_first_wins() -> None:
    assert read(["xx abcd bc"], "abcde", "bc", "d") == ("xx a", "bc")


def test_of_two_that_end_together_the_longest_wins() -> None:
    assert read(["say END"], "D", "END", "ND") == ("say ", "END")


def test_a_stop_inside_a_failed_beginning_is_found() -> None:
    assert read(["aab", "aab", "c"], "aabaac", "baa") == ("aa", "baa")


def test_overlapping_beginnings_are_followed() -> None:
    assert read(["aaa", "ab"], "aab") == ("aa", "aab")


def test_a_stop_that_ends_unarmed_is_ordinary_text() -> None:
    strings = StopStrings(["ab"], include_in_output=False)
    assert strings.push("xab", armed=False) == ("xab", None)
    assert strings.push("c ab") == ("c ", "ab")


def test_a_stop_that_begins_unarmed_counts_when_it_ends_armed() -> None:
    strings = StopStrings(["abc"], include_in_output=False)
    assert strings.push("xab", armed=False) == ("x", None)
    assert strings.push("c") == ("", "abc")


def test_a_stop_may_overlap_one_that_ended_unarmed() -> None:
    strings = StopStrings(["aa"], include_in_output=False)
    assert strings.push("xaa", armed=False) == ("xa", None)
    assert strings.push("a") == ("", "aa")


def test_a_long_stop_string_costs_no_more_per_character() -> None:
    strings = StopStrings(["ab" * 50_000 + "c"], include_in_output=False)
    shown = "".join(strings.push("ab")[0] for _ in range(60_000))
    assert len(shown) == 20_000


@given(
    parts=st.lists(st.text("ab", max_size=4), max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    include=st.booleans(),
)
def test_any_cut_into_parts_shows_the_text_up_to_the_first_stop(
    parts: list[str], stops: list[str], include: bool
) -> None:
    text = "".join(parts)
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        assert read(parts, *stops) == (text, None)
        return
    end, _, stop = min(ends)
    assert read(parts, *stops, include=include) == (text[: end if include else end - len(stop)], stop)
