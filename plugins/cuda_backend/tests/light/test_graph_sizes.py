"""Which numbers of requests are captured."""

from __future__ import annotations

from itertools import pairwise

import pytest
from core_engine_cuda.graph_sizes import captured_sizes
from hypothesis import given
from hypothesis import strategies as st

from core_engine.plugin import ConfigError


@pytest.mark.parametrize(
    ("max_num_reqs", "sizes"),
    [(1, (1,)), (3, (1, 2, 3)), (8, (1, 2, 4, 8)), (30, (1, 2, 4, 8, 16, 24, 30))],
)
def test_small_numbers_are_close_together(max_num_reqs: int, sizes: tuple[int, ...]) -> None:
    assert captured_sizes(None, max_num_reqs) == sizes


@given(st.integers(1, 2000))
def test_sizes_rise_to_the_limit_and_pad_little(max_num_reqs: int) -> None:
    sizes = captured_sizes(None, max_num_reqs)
    assert sizes[-1] == max_num_reqs
    gaps = [high - low for low, high in pairwise(sizes)]
    assert all(0 < gap <= max(8, low // 16 + 1) for gap, low in zip(gaps, sizes, strict=False))


def test_a_list_is_taken_up_to_the_limit() -> None:
    assert captured_sizes("1, 4,16", 8) == (1, 4)


def test_a_list_without_a_size_that_can_be_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"at most 8 requests run at once .*enforce_eager"):
        captured_sizes("16", 8)


@pytest.mark.parametrize("text", ["", "0", "4,2", "2,2", "1;2", "1,", "-1", "many", "²"])
def test_what_is_no_list_of_rising_numbers_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="graph_sizes must be numbers"):
        captured_sizes(text, 8)
