"""What another library's error says fits on one line and keeps its reason."""

from __future__ import annotations

from core_engine._text import aligned, error_line, mib


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


def test_bytes_are_told_in_mebibytes() -> None:
    assert mib(1536 << 10) == "1.5 MiB"
    assert mib(2 << 30) == "2,048.0 MiB"


def test_columns_are_aligned_and_numbers_stand_at_the_right() -> None:
    rows = [("a", "1", "note"), ("long", "1,000", "")]
    assert aligned(rows) == ["a     1      note", "long  1,000"]
    assert aligned(rows, numbers=(1,)) == ["a         1  note", "long  1,000"]
