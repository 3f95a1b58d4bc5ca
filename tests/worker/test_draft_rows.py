from __future__ import annotations

import numpy as np
import pytest

from core_engine._ragged import Ragged
from core_engine.worker.draft_rows import DraftRows


def int32(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int32)


#: Three requests with two, no and one draft.
ROWS = DraftRows.of(Ragged.from_rows([[11, 12], [], [31]]))


def test_each_request_and_each_draft_has_a_row() -> None:
    assert ROWS.requests.tolist() == [0, 0, 0, 1, 2, 2]
    assert ROWS.nth.tolist() == [0, 1, 2, 0, 0, 1]
    assert len(ROWS) == 6


def test_a_row_samples_after_its_own_token() -> None:
    # A decode with two drafts, a prompt of five tokens, a decode with one draft, padding.
    query_start = int32([0, 3, 8, 10, 10, 10])
    assert ROWS.last_tokens(query_start).tolist() == [0, 1, 2, 7, 8, 9]


@pytest.mark.parametrize(
    ("sampled", "accepted"),
    [
        ([11, 12, 13, 5, 31, 32], [0, 1, 2, 3, 4, 5]),
        ([11, 99, 13, 5, 30, 32], [0, 1, 3, 4]),
        ([99, 12, 13, 5, 31, 32], [0, 3, 4, 5]),
        # A right draft after a wrong one does not count.
        ([12, 12, 13, 5, 31, 32], [0, 3, 4, 5]),
    ],
)
def test_rows_count_up_to_the_first_wrong_draft(sampled: list[int], accepted: list[int]) -> None:
    assert ROWS.accepted(int32(sampled), int32([0, 1, 2])).tolist() == accepted


def test_requests_that_do_not_sample_accept_nothing() -> None:
    assert ROWS.accepted(int32([11, 12, 13, 5, 31, 32]), int32([0, 2])).tolist() == [0, 1, 2, 4, 5]
