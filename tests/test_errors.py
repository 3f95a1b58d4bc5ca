from __future__ import annotations

import pytest

from core_engine.errors import did_you_mean

FLAGS = ("--temperature", "--stop", "--top-k", "--max-tokens", "--min-tokens", "--json")


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("--tempreature", "--temperature"),
        ("--temp", "--temperature"),
        ("--top_k", "--top-k"),
        ("--TEMPERATURE", "--temperature"),
        ("-json", "--json"),
        ("--max", "--max-tokens"),
    ],
)
def test_the_nearest_name_is_found(asked: str, nearest: str) -> None:
    assert did_you_mean(asked, FLAGS) == f" Did you mean {nearest!r}?"


@pytest.mark.parametrize("asked", ["--verbose", "", "--", "-"])
def test_what_is_near_to_nothing_gets_no_suggestion(asked: str) -> None:
    assert did_you_mean(asked, FLAGS) == ""
