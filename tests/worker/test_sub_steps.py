"""A mixed step as two, and their results as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from core_engine._ragged import Ragged
from core_engine.errors import StepTimeout
from core_engine.sampling.params import SamplingParams
from core_engine.scheduler.output import NewRequest, SchedulerOutput
from core_engine.worker.output import FinishedStep, LogprobRows, ModelRunnerOutput
from core_engine.worker.sub_steps import SubSteps, split_by_kind


def step(counts: dict[str, int], **changes: Any) -> SchedulerOutput:
    """A step of requests by name; each has computed ten times as many tokens as it computes now."""
    numbers = np.array(list(counts.values()), dtype=np.int32)
    columns = {
        "step_id": 4,
        "request_ids": tuple(counts),
        "num_scheduled_tokens": numbers,
        "num_computed_tokens": numbers * 10,
        "new_block_ids": (Ragged.from_rows([[1]] * len(counts)),),
    }
    return SchedulerOutput(**{**columns, **changes})


def output(rows: dict[str, list[int]], **parts: Any) -> ModelRunnerOutput:
    return ModelRunnerOutput(
        step_id=4, request_ids=tuple(rows), sampled_token_ids=Ragged.from_rows(rows.values()), **parts
    )


def logprobs(token_ids: Sequence[Sequence[int]]) -> LogprobRows:
    ids = np.array(token_ids, dtype=np.int32)
    return LogprobRows(token_ids=ids, logprobs=-ids.astype(np.float32), ranks=ids[:, 0] * 100)


MIXED = step({"a": 1, "b": 3, "c": 1, "d": 2})


def joined(whole: SchedulerOutput, *outputs: ModelRunnerOutput) -> ModelRunnerOutput:
    return SubSteps(whole, [FinishedStep(output) for output in outputs]).result()


@pytest.mark.parametrize("counts", [{"a": 1, "b": 1}, {"a": 2, "b": 5}, {"a": 1}])
def test_a_step_of_one_kind_stays_as_it_is(counts: dict[str, int]) -> None:
    whole = step(counts)
    assert split_by_kind(whole) == (whole,)


def test_a_mixed_step_becomes_the_decodes_and_then_the_prefills() -> None:
    decodes, prefills = split_by_kind(MIXED)
    assert (decodes.request_ids, prefills.request_ids) == (("a", "c"), ("b", "d"))
    assert decodes.num_scheduled_tokens.tolist() == [1, 1]
    assert prefills.num_scheduled_tokens.tolist() == [3, 2]
    assert prefills.num_computed_tokens.tolist() == [30, 20]
    assert decodes.step_id == prefills.step_id == 4


def test_what_a_step_tells_of_requests_is_in_no_part() -> None:
    new = NewRequest(
        request_id="b",
        prompt_token_ids=np.arange(30, dtype=np.int32),
        sampling_params=SamplingParams(),
        seed=0,
    )
    whole = step(
        {"a": 1, "b": 3},
        new_requests=(new,),
        resumed_request_ids=("a",),
        preempted_request_ids=("x",),
        finished_request_ids=("y",),
    )
    for part in split_by_kind(whole):
        assert part.new_requests == part.new_block_ids == ()
        assert part.resumed_request_ids == part.preempted_request_ids == part.finished_request_ids == ()


def test_rows_with_drafts_count_as_prefills_and_keep_their_drafts() -> None:
    drafts = Ragged.from_rows([[], [7, 8], [], [9]])
    decodes, prefills = split_by_kind(step({"a": 1, "b": 3, "c": 1, "d": 2}, draft_token_ids=drafts))
    assert decodes.draft_token_ids is None
    assert prefills.draft_token_ids is not None
    assert [prefills.draft_token_ids.row(row).tolist() for row in range(2)] == [[7, 8], [9]]


def test_rows_come_back_in_the_order_of_the_step() -> None:
    result = joined(MIXED, output({"a": [1], "c": [3]}), output({"b": [2, 20, 200], "d": [4]}))
    assert result.step_id == 4
    assert result.request_ids == ("a", "b", "c", "d")
    rows = [result.sampled_token_ids.row(row).tolist() for row in range(4)]
    assert rows == [[1], [2, 20, 200], [3], [4]]


@pytest.mark.parametrize("sampled", [{}, {"d": [4]}])
def test_rows_that_do_not_sample_are_left_out(sampled: dict[str, list[int]]) -> None:
    result = joined(MIXED, output({}), output(sampled))
    assert result.request_ids == tuple(sampled)
    assert len(result.sampled_token_ids) == len(sampled)


def test_logprobs_follow_their_tokens() -> None:
    result = joined(
        MIXED,
        output({"a": [1], "c": [3]}, logprobs=logprobs([[1, 5], [3, 5]])),
        output({"b": [2, 20], "d": [4]}, logprobs=logprobs([[2, 5, 6], [20, 5, 6], [4, 5, 6]])),
    )
    assert result.logprobs is not None
    assert result.logprobs.token_ids[:, 0].tolist() == result.sampled_token_ids.values.tolist()
    assert result.logprobs.token_ids[1].tolist() == [2, 5, 6]
    assert result.logprobs.logprobs[3, :2].tolist() == [-3, -5]
    assert result.logprobs.ranks.tolist() == [100, 200, 2000, 300, 400]


def test_a_part_without_logprobs_fills_its_rows_with_nothing_known() -> None:
    result = joined(MIXED, output({"a": [1], "c": [3]}), output({"b": [2]}, logprobs=logprobs([[2, 5]])))
    assert result.logprobs is not None
    assert np.isnan(result.logprobs.logprobs[[0, 2]]).all()
    assert result.logprobs.logprobs[1].tolist() == [-2, -5]


def test_no_logprobs_stay_none() -> None:
    assert joined(MIXED, output({"a": [1]}), output({"b": [2]})).logprobs is None


def test_prompt_logprobs_of_all_parts_are_kept() -> None:
    rows = {"b": logprobs([[1, 2]]), "d": logprobs([[3, 4]])}
    result = joined(MIXED, output({"a": [1]}), output({}, prompt_logprobs=rows))
    assert result.prompt_logprobs == rows


def test_the_parts_are_waited_for_once() -> None:
    handle = SubSteps(MIXED, [FinishedStep(output({"a": [1]})), FinishedStep(output({"b": [2]}))])
    assert handle.result() is handle.result(timeout_s=1.0)


class NeverDone:
    """A part that takes all the time it is given."""

    def result(self, timeout_s: float | None = None) -> ModelRunnerOutput:
        assert timeout_s is not None
        assert 0 <= timeout_s <= 5
        raise StepTimeout("too slow")


def test_one_timeout_is_for_all_parts() -> None:
    handle = SubSteps(MIXED, [FinishedStep(output({"a": [1]})), NeverDone()])
    with pytest.raises(StepTimeout):
        handle.result(timeout_s=5.0)
