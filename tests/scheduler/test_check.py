from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scheduler.harness import kv_config

from core_engine._ragged import Ragged
from core_engine.errors import ContractError
from core_engine.sampling.params import SamplingParams
from core_engine.scheduler.check import StepChecker
from core_engine.scheduler.output import NewRequest, SchedulerOutput


def step(
    rows: Sequence[tuple[str, int, int, Sequence[int]]],
    *,
    new: str = "",
    num_prompt_tokens: int = 24,
    **news: Any,
) -> SchedulerOutput:
    """A step of (id, computed, scheduled, new blocks) rows; ``new`` names the new requests."""
    ids = tuple(row[0] for row in rows)
    return SchedulerOutput(
        step_id=0,
        request_ids=ids,
        num_computed_tokens=np.array([row[1] for row in rows], dtype=np.int32),
        num_scheduled_tokens=np.array([row[2] for row in rows], dtype=np.int32),
        new_block_ids=(Ragged.from_rows([row[3] for row in rows]),),
        new_requests=tuple(
            NewRequest(
                request_id=name,
                prompt_token_ids=np.zeros(num_prompt_tokens, dtype=np.int32),
                sampling_params=SamplingParams(),
                seed=0,
            )
            for name in new
        ),
        **news,
    )


@pytest.fixture
def checker() -> StepChecker:
    """Blocks of 4 tokens, 8 of them; 10 tokens and 2 requests a step, 16 tokens a sequence."""
    return StepChecker(kv_config(num_blocks=9, max_model_len=16), max_num_batched_tokens=10, max_num_seqs=2)


def test_a_life_of_prefill_decode_preemption_and_end_is_accepted(checker: StepChecker) -> None:
    checker.check(step([("a", 0, 4, [1])], new="a"))
    checker.check(step([("a", 4, 1, [2]), ("b", 4, 3, [3, 4])], new="b"))
    checker.check(step([("a", 5, 1, [])], preempted_request_ids=("b",)))
    checker.check(step([("b", 0, 8, [5, 6])], resumed_request_ids=("b",), finished_request_ids=("a",)))
    checker.check(step([("a", 0, 1, [1])], new="a", finished_request_ids=("b",)))
    checker.check(step([], finished_request_ids=("a",)))


FIRST = step([("a", 0, 4, [1])], new="a")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (step([("a", 4, 1, [2]), ("a", 4, 1, [3])]), "stands in it twice"),
        (step([("b", 0, 1, [2])]), r"\['b'\] neither new nor resumed nor running"),
        (step([("a", 4, 11, [2, 3, 4])]), "11 tokens, max_num_batched_tokens is 10"),
        (step([(n, 0, 1, [2]) for n in "bc"], new="bc"), "more requests run than max_num_seqs 2"),
        (step([("a", 4, 0, [])]), "'a' computes no token"),
        (step([("a", 5, 1, [2])]), "'a' skips or repeats tokens"),
        (step([("a", 3, 1, [])]), "'a' skips or repeats tokens"),
        (step([("a", 4, 1, [])]), "'a' has too few blocks"),
        (step([("a", 4, 1, [0])]), r"blocks \[0\] are not for tokens"),
        (step([("a", 4, 1, [9])]), r"blocks \[9\] are not for tokens"),
        (step([("a", 4, 1, [2])], new="a"), "'a' is new twice"),
        (step([("a", 4, 1, [2])], new="b"), "a new or resumed request computes nothing"),
        (step([("b", 0, 1, [2])], resumed_request_ids=("b",)), "'b' is resumed, but it was not preempted"),
        (step([], preempted_request_ids=("b",)), "'b' is preempted, but it does not run"),
        (step([], finished_request_ids=("b",)), "'b' is finished, but it does not run"),
    ],
)
def test_a_wrong_step_is_refused(checker: StepChecker, wrong: SchedulerOutput, text: str) -> None:
    checker.check(FIRST)

    with pytest.raises(ContractError, match=text):
        checker.check(wrong)


def test_a_request_goes_on_at_any_of_its_drafts() -> None:
    kv = kv_config(num_blocks=9, max_model_len=16)
    checker = StepChecker(kv, max_num_batched_tokens=10, max_num_seqs=4)
    checker.check(FIRST)
    checker.check(step([("a", 4, 4, [2])], draft_token_ids=Ragged.from_rows([[7, 8, 9]])))
    checker.check(step([("a", 6, 3, [3])], draft_token_ids=Ragged.from_rows([[7, 8]])))
    checker.check(step([("a", 9, 1, [])]))
    with pytest.raises(ContractError, match="'a' skips or repeats tokens"):
        checker.check(step([("a", 9, 1, [])]))


def test_a_request_does_not_go_back_behind_its_drafts(checker: StepChecker) -> None:
    checker.check(FIRST)
    checker.check(step([("a", 4, 2, [2])], draft_token_ids=Ragged.from_rows([[7]])))
    with pytest.raises(ContractError, match="'a' skips or repeats tokens"):
        checker.check(step([("a", 4, 1, [])]))


@pytest.mark.parametrize(
    ("count", "drafts", "text"),
    [
        (2, [[7], [8]], "2 rows of drafts"),
        (3, [[7]], "'a' drafts without decoding"),
        (3, [[7, 8]], "3 requests and drafts, max_num_seqs is 2"),
    ],
)
def test_wrong_drafts_are_refused(
    checker: StepChecker, count: int, drafts: list[list[int]], text: str
) -> None:
    checker.check(FIRST)
    with pytest.raises(ContractError, match=text):
        checker.check(step([("a", 4, count, [2])], draft_token_ids=Ragged.from_rows(drafts)))


MORE = "'a' computes more tokens than it has"


def test_a_new_request_computes_at_most_its_prompt(checker: StepChecker) -> None:
    with pytest.raises(ContractError, match=MORE):
        checker.check(step([("a", 0, 9, [1, 2, 3])], new="a", num_prompt_tokens=8))
    checker.excuse(["a"])
    with pytest.raises(ContractError, match=MORE):
        checker.check(step([("a", 8, 1, [1, 2, 3])], new="a", num_prompt_tokens=8))


def test_a_running_request_computes_at_most_its_prompt_and_what_was_sampled(checker: StepChecker) -> None:
    checker.check(step([("a", 0, 3, [1, 2])], new="a", num_prompt_tokens=5))
    with pytest.raises(ContractError, match=MORE):
        checker.check(step([("a", 3, 3, [])]))
    checker.check(step([("a", 3, 2, [])]))
    checker.check(step([("a", 5, 1, [])]))
    with pytest.raises(ContractError, match=MORE):
        checker.check(step([("a", 6, 2, [])]))


def test_a_resumed_request_computes_at_most_what_it_had(checker: StepChecker) -> None:
    checker.check(step([("a", 0, 5, [1, 2])], new="a", num_prompt_tokens=5))
    checker.check(step([("b", 0, 1, [3])], new="b", preempted_request_ids=("a",)))
    with pytest.raises(ContractError, match=MORE):
        checker.check(step([("a", 0, 7, [1, 2])], resumed_request_ids=("a",)))
    checker.excuse(["a"])
    checker.check(step([("a", 0, 5, [1, 2])], new="a", num_prompt_tokens=5))
    checker.check(step([("b", 1, 1, [])], preempted_request_ids=("a",)))
    checker.check(step([("a", 0, 6, [1, 2])], resumed_request_ids=("a",)))


def test_after_drafts_a_request_has_one_token_more_than_is_computed() -> None:
    kv = kv_config(num_blocks=9, max_model_len=16)
    checker = StepChecker(kv, max_num_batched_tokens=10, max_num_seqs=4)
    checker.check(step([("a", 0, 4, [1, 2])], new="a", num_prompt_tokens=4))
    checker.check(step([("a", 4, 3, [])], draft_token_ids=Ragged.from_rows([[7, 8]])))
    with pytest.raises(ContractError, match=MORE):
        checker.check(step([("a", 5, 2, [])]))
    checker.check(step([("a", 5, 1, [])]))


def test_numbers_that_overflow_are_refused(checker: StepChecker) -> None:
    with pytest.raises(ContractError, match="'a' exceeds max_model_len"):
        checker.check(step([("a", 2**31 - 1, 1, [1])], new="a"))


def test_a_step_that_neither_computes_nor_tells_anything_is_refused(checker: StepChecker) -> None:
    with pytest.raises(ContractError, match="computes nothing and tells nothing"):
        checker.check(step([]))


@pytest.mark.parametrize("column", ["num_scheduled_tokens", "num_computed_tokens"])
def test_columns_of_another_type_are_refused(checker: StepChecker, column: str) -> None:
    wrong = replace(FIRST, **{column: getattr(FIRST, column).astype(np.float64)})

    with pytest.raises(ContractError, match="a column of float64, not int32"):
        checker.check(wrong)


def test_blocks_that_belong_to_no_row_are_refused(checker: StepChecker) -> None:
    (blocks,) = FIRST.new_block_ids
    wrong = replace(FIRST, new_block_ids=(replace(blocks, values=np.array([1, 2], dtype=np.int32)),))

    with pytest.raises(ContractError, match="blocks that belong to no row"):
        checker.check(wrong)


def test_no_sequence_exceeds_max_model_len(checker: StepChecker) -> None:
    checker.check(step([("a", 8, 8, [1, 2, 3, 4])], new="a"))

    with pytest.raises(ContractError, match="'a' exceeds max_model_len"):
        checker.check(step([("a", 16, 1, [5])]))


def test_columns_of_different_lengths_are_refused(checker: StepChecker) -> None:
    good = step([("a", 0, 4, [1])], new="a")
    wrong = SchedulerOutput(
        step_id=0,
        request_ids=good.request_ids,
        num_scheduled_tokens=good.num_scheduled_tokens,
        num_computed_tokens=np.zeros(2, dtype=np.int32),
        new_block_ids=good.new_block_ids,
        new_requests=good.new_requests,
    )

    with pytest.raises(ContractError, match="rows for 1 requests"):
        checker.check(wrong)


def test_what_cannot_be_read_is_refused(checker: StepChecker) -> None:
    wrong = replace(FIRST, num_scheduled_tokens=None)

    with pytest.raises(ContractError, match="cannot be read: AttributeError"):
        checker.check(wrong)


def test_after_a_wrong_step_its_requests_are_forgotten_and_their_ends_accepted_once(
    checker: StepChecker,
) -> None:
    checker.check(step([("a", 0, 4, [1]), ("b", 0, 1, [2])], new="ab"))
    with pytest.raises(ContractError):
        checker.check(step([("a", 5, 1, [3])], preempted_request_ids=("b",)))
    checker.excuse(["a", "b"])

    checker.check(step([("a", 0, 4, [1]), ("c", 0, 1, [2])], new="ac", finished_request_ids=("a", "b")))

    with pytest.raises(ContractError, match="'b' is finished, but it does not run"):
        checker.check(step([], finished_request_ids=("b",)))


def test_a_request_may_end_in_a_step_with_the_same_tuple_of_ids(checker: StepChecker) -> None:
    checker.check(FIRST)

    with pytest.raises(ContractError, match=r"\['a'\] neither new nor resumed"):
        checker.check(replace(FIRST, new_requests=(), finished_request_ids=("a",)))


WINDOWS = kv_config(num_blocks=30, max_model_len=40, windows=(None, 6))


def windowed(full: Sequence[int], sliding: Sequence[int], computed: int, **news: Any) -> SchedulerOutput:
    """A step of one token of "a" over a group that keeps all and one with a window of 6."""
    (whole,) = step([("a", computed, 1, full)]).new_block_ids
    (part,) = step([("a", computed, 1, sliding)]).new_block_ids
    return replace(step([("a", computed, 1, [])], **news), new_block_ids=(whole, part))


def test_a_windows_leading_entries_may_be_the_null_block_in_a_whole_table() -> None:
    checker = StepChecker(WINDOWS, max_num_batched_tokens=10, max_num_seqs=2)

    # The token at 16 sees positions 11 to 16: blocks 0 and 1 are behind it.
    checker.check(windowed([1, 2, 3, 4, 5], [0, 0, 6, 7, 8], 16, new="a"))
    checker.check(windowed([], [], 17))


@pytest.mark.parametrize(
    ("full", "sliding"),
    [
        ([1, 2, 3, 4, 5], [0, 0, 0, 7, 8]),  # block 2 is seen
        ([1, 2, 3, 4, 5], [0, 6, 0, 7, 8]),
        ([1, 2, 3, 4, 5], [6, 7, 8, 9, 0]),
        ([0, 2, 3, 4, 5], [0, 0, 6, 7, 8]),  # the first group keeps all
    ],
)
def test_the_null_block_where_a_token_sees_it_is_refused(full: list[int], sliding: list[int]) -> None:
    checker = StepChecker(WINDOWS, max_num_batched_tokens=10, max_num_seqs=2)

    with pytest.raises(ContractError, match="are not for tokens"):
        checker.check(windowed(full, sliding, 16, new="a"))


def test_the_null_block_is_refused_where_a_table_only_grows() -> None:
    checker = StepChecker(WINDOWS, max_num_batched_tokens=10, max_num_seqs=2)
    checker.check(windowed([1], [2], 0, new="a"))

    with pytest.raises(ContractError, match=r"blocks \[0\] are not for tokens"):
        checker.check(windowed([3], [0], 1))


def test_every_group_needs_blocks_for_all_tokens() -> None:
    checker = StepChecker(WINDOWS, max_num_batched_tokens=10, max_num_seqs=2)

    with pytest.raises(ContractError, match="'a' has too few blocks"):
        checker.check(windowed([1, 2, 3, 4, 5], [0, 0, 6, 7], 16, new="a"))
