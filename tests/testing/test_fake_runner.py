from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from core_engine._ragged import Ragged
from core_engine.kv_cache.specs import KVCacheConfig, KVCacheGroup, KVCacheSpec
from core_engine.sampling.params import SamplingParams
from core_engine.scheduler.output import NewRequest, SchedulerOutput
from core_engine.testing.fake_model import FakeModel
from core_engine.testing.fake_runner import FakeRunner, ScheduleViolation

GREEDY = SamplingParams(temperature=0.0)
PROMPT = [5, 6, 7, 8, 9, 10]


def group(sliding_window: int | None = None) -> KVCacheGroup:
    spec = KVCacheSpec(
        num_kv_heads=1, head_dim=8, head_dim_v=8, dtype="float32", sliding_window=sliding_window
    )
    return KVCacheGroup(layers={"layer.0": spec}, shared={}, sliding_window=sliding_window)


def runner(*groups: KVCacheGroup, **limits: int) -> FakeRunner:
    config = KVCacheConfig(num_blocks=9, block_size=4, max_model_len=24, groups=groups or (group(),))
    return FakeRunner(config, **limits)


def request(name: str = "a", prompt: Sequence[int] = PROMPT, params: SamplingParams = GREEDY) -> NewRequest:
    ids = np.array(prompt, dtype=np.int32)
    return NewRequest(request_id=name, prompt_token_ids=ids, sampling_params=params, seed=3)


def step(
    step_id: int,
    rows: dict[str, tuple[int, int, Sequence[int]]],
    *,
    new: Sequence[NewRequest] = (),
    resumed: Sequence[str] = (),
    preempted: Sequence[str] = (),
    finished: Sequence[str] = (),
) -> SchedulerOutput:
    """Build a step from request id → (computed, scheduled, new blocks)."""
    return SchedulerOutput(
        step_id=step_id,
        request_ids=tuple(rows),
        num_computed_tokens=np.array([row[0] for row in rows.values()], dtype=np.int32),
        num_scheduled_tokens=np.array([row[1] for row in rows.values()], dtype=np.int32),
        new_block_ids=(Ragged.from_rows(row[2] for row in rows.values()),),
        new_requests=tuple(new),
        resumed_request_ids=tuple(resumed),
        preempted_request_ids=tuple(preempted),
        finished_request_ids=tuple(finished),
    )


def tokens(fake: FakeRunner, message: SchedulerOutput) -> dict[str, int]:
    output = fake.execute_model(message).result()
    return dict(zip(output.request_ids, output.sampled_token_ids.values.tolist(), strict=True))


def test_whole_and_chunked_prompts_give_the_tokens_of_the_model() -> None:
    expected = FakeModel().generate(PROMPT, GREEDY, 3)
    fake = runner()
    whole = [
        tokens(fake, step(0, {"a": (0, 6, [1, 2])}, new=[request()])),
        tokens(fake, step(1, {"a": (6, 1, [])})),
        tokens(fake, step(2, {"a": (7, 1, [])})),
    ]
    assert [row["a"] for row in whole] == expected

    fake = runner()
    assert tokens(fake, step(0, {"a": (0, 4, [7])}, new=[request()])) == {}
    assert tokens(fake, step(1, {"a": (4, 2, [3])})) == {"a": expected[0]}


def test_sampled_tokens_depend_on_seed_stream_and_position_only() -> None:
    params = SamplingParams(temperature=1.0)
    model = FakeModel()
    first = model.generate(PROMPT, params, 8, seed=1)
    assert model.generate(PROMPT, params, 8, seed=1) == first
    assert model.generate(PROMPT, params, 8, seed=2) != first
    assert model.generate(PROMPT, params, 8, seed=1, stream=1) != first
    fake = runner()
    sampled = tokens(fake, step(0, {"a": (0, 6, [1, 2])}, new=[request(params=params)]))
    assert [sampled["a"]] == model.generate(PROMPT, params, 1, seed=3)


def test_min_tokens_defers_a_stop_token() -> None:
    stop = FakeModel().generate(PROMPT, GREEDY, 1)[0]
    eager = FakeModel().generate(PROMPT, GREEDY, 4, eos_token_ids=(stop,))
    params = SamplingParams(temperature=0.0, min_tokens=2)
    deferred = FakeModel().generate(PROMPT, params, 4, eos_token_ids=(stop,))
    assert eager == [stop]
    assert stop not in deferred[:2]


def test_a_preempted_request_resumes_with_its_tokens() -> None:
    fake = runner()
    first = tokens(fake, step(0, {"a": (0, 6, [1, 2])}, new=[request()]))["a"]
    fake.execute_model(step(1, {}, preempted=["a"]))
    resumed = tokens(fake, step(2, {"a": (0, 7, [3, 4])}, resumed=["a"]))["a"]
    assert [first, resumed] == FakeModel().generate(PROMPT, GREEDY, 2)


def test_a_shared_prefix_that_was_written_is_accepted() -> None:
    fake = runner()
    fake.execute_model(step(0, {"a": (0, 6, [1, 2])}, new=[request("a")]))
    second = tokens(fake, step(1, {"b": (4, 2, [1, 3])}, new=[request("b")]))
    assert second == {"b": FakeModel().generate(PROMPT, GREEDY, 1)[0]}


def test_a_finished_id_is_free_in_the_same_step() -> None:
    fake = runner()
    fake.execute_model(step(0, {"a": (0, 6, [1, 2])}, new=[request("a")]))
    fake.execute_model(step(1, {"a": (0, 6, [1, 2])}, new=[request("a")], finished=["a"]))
    assert fake.request_ids == {"a"}
    fake.execute_model(step(2, {}, finished=["a"]))
    assert not fake.request_ids


def test_log_probabilities_follow_the_contract() -> None:
    params = SamplingParams(temperature=0.0, logprobs=2, prompt_logprobs=0)
    fake = runner()
    message = step(0, {"a": (0, 6, [1, 2])}, new=[request(params=params)])
    output = fake.execute_model(message).result()
    assert output.logprobs is not None
    assert output.logprobs.token_ids.shape == (1, 3)
    assert output.logprobs.ranks.tolist() == [1]
    prompt = output.prompt_logprobs["a"]
    assert prompt.token_ids[:, 0].tolist() == PROMPT[1:]


def test_a_sliding_window_needs_only_the_blocks_that_it_sees() -> None:
    fake = runner(group(sliding_window=2))
    fake.execute_model(step(0, {"a": (0, 5, [1, 2])}, new=[request()]))
    fake.execute_model(step(1, {}, preempted=["a"]))
    seen = step(2, {"a": (5, 1, [0, 2])}, resumed=["a"])
    assert tokens(fake, seen) == {"a": FakeModel().generate(PROMPT, GREEDY, 1)[0]}


FIRST = step(0, {"a": (0, 6, [1, 2])}, new=[request()])
VIOLATIONS = {
    "step 0 came, step 1 is next": [FIRST, step(0, {"a": (6, 1, [])})],
    "starts at 7, not at 6": [FIRST, step(1, {"a": (7, 1, [])})],
    "computes 6 to 8 of 7 tokens": [FIRST, step(1, {"a": (6, 2, [])})],
    "0 tokens scheduled": [FIRST, step(1, {"a": (6, 0, [])})],
    "neither new nor resumed": [FIRST, step(1, {"b": (0, 1, [3])})],
    "is known already": [FIRST, step(1, {"a": (6, 1, [])}, new=[request()])],
    "nothing to compute": [step(0, {}, new=[request()])],
    "not preempted": [FIRST, step(1, {"a": (6, 1, [])}, resumed=["a"])],
    "is preempted and": [FIRST, step(1, {"a": (6, 1, [])}, preempted=["a"])],
    "does not know it": [FIRST, step(1, {}, finished=["b"])],
    "it is not running": [FIRST, step(1, {}, preempted=["b"])],
    "blocks for 4 tokens, 6 are needed": [step(0, {"a": (0, 6, [1])}, new=[request()])],
    "block 9 is not in the pool": [step(0, {"a": (0, 6, [1, 9])}, new=[request()])],
    "null block": [step(0, {"a": (0, 6, [1, 0])}, new=[request()])],
    "twice in its table": [step(0, {"a": (0, 6, [1, 1])}, new=[request()])],
    "a table holds 6": [step(0, {"a": (0, 6, [1, 2, 3, 4, 5, 6, 7])}, new=[request()])],
    "which 2 requests hold": [FIRST, step(1, {"b": (4, 2, [1, 2])}, new=[request("b")])],
    "position 0 counts as computed, but block 3": [step(0, {"a": (4, 2, [3, 4])}, new=[request()])],
    "position 0 counts as computed, but block 1": [
        FIRST,
        step(1, {"b": (4, 2, [1, 3])}, new=[request("b", prompt=[6, 6, 7, 8, 9, 10])]),
    ],
    "position 3 counts as computed": [
        step(0, {"a": (0, 3, [1])}, new=[request("a")]),
        step(1, {"b": (4, 2, [1, 3])}, new=[request("b")]),
    ],
}


@pytest.mark.parametrize("reason", VIOLATIONS)
def test_a_step_that_breaks_the_contract_is_refused(reason: str) -> None:
    fake = runner()
    *good, bad = VIOLATIONS[reason]
    for message in good:
        fake.execute_model(message)
    with pytest.raises(ScheduleViolation, match=reason):
        fake.execute_model(bad)


def test_after_a_lost_step_ends_of_unknown_requests_are_no_fault() -> None:
    fake = runner()
    fake.execute_model(FIRST)
    fake.execute_model(step(2, {}, preempted=["never-seen"], finished=["a", "b"]))
    assert not fake.request_ids
    with pytest.raises(ScheduleViolation, match="does not know it"):
        fake.execute_model(step(3, {}, finished=["c"]))


def test_who_left_may_be_told_again_with_the_next_step() -> None:
    fake = runner()
    fake.execute_model(FIRST)
    fake.execute_model(step(1, {}, preempted=["a"]))
    fake.execute_model(step(2, {}, preempted=["a"], finished=["a"]))
    assert not fake.request_ids
    fake.execute_model(step(3, {}, finished=["a"]))


def test_a_prefix_may_not_be_shared_in_the_step_that_writes_it() -> None:
    both = step(0, {"a": (0, 6, [1, 2]), "b": (4, 2, [1, 3])}, new=[request("a"), request("b")])
    with pytest.raises(ScheduleViolation, match="which 2 requests hold"):
        runner().execute_model(both)


@pytest.mark.parametrize(
    ("limits", "reason"), [({"max_num_seqs": 0}, "1 requests"), ({"max_num_batched_tokens": 5}, "6 tokens")]
)
def test_the_limits_of_a_step_hold(limits: dict[str, int], reason: str) -> None:
    with pytest.raises(ScheduleViolation, match=reason):
        runner(**limits).execute_model(FIRST)


def draft(row: tuple[int, int, Sequence[int]], drafts: Sequence[int]) -> SchedulerOutput:
    return replace(step(1, {"a": row}), draft_token_ids=Ragged.from_rows([drafts]))


def test_drafts_are_accepted_up_to_the_first_wrong_one() -> None:
    fake = runner()
    expected = FakeModel().generate(PROMPT, GREEDY, 6)
    fake.execute_model(FIRST)
    drafts = [*expected[1:3], expected[3] + 1, expected[4]]

    output = fake.execute_model(draft((6, 5, [3]), drafts)).result()
    following = fake.execute_model(step(2, {"a": (9, 1, [])})).result()

    assert output.sampled_token_ids.row(0).tolist() == expected[1:4]
    assert following.sampled_token_ids.row(0).tolist() == expected[4:5]


def test_a_rejected_draft_does_not_count_as_computed() -> None:
    fake = runner()
    fake.execute_model(FIRST)
    wrong = FakeModel().generate(PROMPT, GREEDY, 2)[1] + 1
    fake.execute_model(draft((6, 2, []), [wrong]))
    with pytest.raises(ScheduleViolation, match="starts at 8, not at 7"):
        fake.execute_model(step(2, {"a": (8, 1, [3])}))


@pytest.mark.parametrize(
    ("row", "drafts", "limits", "reason"),
    [
        ((6, 3, [3]), [1], {}, "does not decode"),
        ((6, 3, [3]), [1, 2], {"max_num_seqs": 2}, "3 requests and drafts, at most 2"),
    ],
)
def test_wrong_drafts_are_violations(
    row: tuple[int, int, Sequence[int]], drafts: Sequence[int], limits: dict[str, int], reason: str
) -> None:
    fake = runner(**limits)
    fake.execute_model(FIRST)
    with pytest.raises(ScheduleViolation, match=reason):
        fake.execute_model(draft(row, drafts))
