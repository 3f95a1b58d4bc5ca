"""What another library's error says fits on one line and keeps its reason."""

from __future__ import annotations

from core_engine._text import error_line


def test_all_lines_of_an_error_count() -> None:
    assert error_line(ValueError("Validation failed:\n    the size is odd\n")) == (
        "Validation failed: the size is odd"
    )


def test_an_error_without_text_is_named_by_its_type() -> None:
    assert error_line(MemoryError()) == "MemoryError"


def test_a_missing_key_is_not_quoted_again() -> None:
    assert error_line(KeyError("no field 'a'")) == "no field 'a'"


def test_a_long_text_is_cut_where_one_can_see_it() -> None:
    assert error_line(ValueError("abcdef"), 4) == "abc…"
