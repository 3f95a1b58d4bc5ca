from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from core_engine import SamplingParams
from core_engine._ragged import Ragged
from core_engine.kv_cache.specs import KVCacheConfig, KVCacheGroup, KVCacheSpec
from core_engine.scheduler.output import NewRequest, SchedulerOutput
from core_engine.worker.input_batch import InputBatch, PreparedStep
from core_engine.worker.shape_policy import ExactShapes, SamplingKind, ShapePolicy, StepKind, StepShape

BLOCK_SIZE = 4
KV = KVCacheConfig(
    num_blocks=32,
    block_size=BLOCK_SIZE,
    max_model_len=24,
    groups=(
        KVCacheGroup(
            layers={"layer": KVCacheSpec(num_kv_heads=1, head_dim=8, head_dim_v=8, dtype="float32")},
            shared={},
        ),
    ),
)


class Padded(ShapePolicy):
    """Eight tokens and four requests, whatever the step."""

    def pad(self, num_tokens: int, num_reqs: int, kind: StepKind) -> StepShape:
        return StepShape(8, 4, kind)

    def warm_up_shapes(self) -> tuple[StepShape, ...]:
        return ()


@dataclass
class Item:
    """One request of a step: its id, where it stands, how many tokens to compute, its new blocks."""

    name: str
    computed: int
    count: int
    blocks: Sequence[int] = ()


def step(*items: Item, new: Sequence[NewRequest] = (), **ids: tuple[str, ...]) -> SchedulerOutput:
    return SchedulerOutput(
        step_id=0,
        request_ids=tuple(item.name for item in items),
        num_scheduled_tokens=np.array([item.count for item in items], dtype=np.int32),
        num_computed_tokens=np.array([item.computed for item in items], dtype=np.int32),
        new_block_ids=(Ragged.from_rows([item.blocks for item in items]),),
        new_requests=tuple(new),
        **ids,
    )


def request(name: str, prompt: Sequence[int], **params: object) -> NewRequest:
    return NewRequest(
        request_id=name,
        prompt_token_ids=np.array(prompt, dtype=np.int32),
        sampling_params=SamplingParams(**params),  # type: ignore[arg-type]
        seed=1,
    )


def make_batch(shapes: ShapePolicy | None = None) -> InputBatch:
    return InputBatch(KV, shapes or ExactShapes(), max_num_seqs=4, vocab_size=100)


def run(batch: InputBatch, message: SchedulerOutput, sampled: int | None = None) -> PreparedStep:
    batch.apply(message)
    prepared = batch.prepare(message)
    if sampled is not None:
        rows = prepared.rows[prepared.sampling]
        batch.commit(rows, np.full(len(rows), sampled, dtype=np.int32))
    return prepared


def test_a_whole_prompt_samples_at_its_last_token() -> None:
    host = (
        prepared := run(make_batch(), step(Item("a", 0, 5, [3, 4]), new=[request("a", [10, 11, 12, 13, 14])]))
    ).host
    assert host.token_ids.tolist() == [10, 11, 12, 13, 14]
    assert host.positions.tolist() == [0, 1, 2, 3, 4]
    assert host.slot_mapping[0].tolist() == [12, 13, 14, 15, 16]
    assert host.seq_lens.tolist() == [5]
    assert host.logits_rows.tolist() == [4]
    assert prepared.sampling.tolist() == [0]


def test_a_chunk_that_does_not_reach_the_end_of_the_prompt_does_not_sample() -> None:
    batch = make_batch()
    first = run(batch, step(Item("a", 0, 3, [3]), new=[request("a", [10, 11, 12, 13, 14])]))
    assert first.sampling.tolist() == []
    second = run(batch, step(Item("a", 3, 2, [4])))
    assert second.sampling.tolist() == [0]
    assert second.host.token_ids.tolist() == [13, 14]
    assert second.host.positions.tolist() == [3, 4]
    assert second.host.slot_mapping[0].tolist() == [15, 16]


def test_a_decode_computes_the_token_that_was_sampled_last() -> None:
    batch = make_batch()
    run(batch, step(Item("a", 0, 2, [3]), new=[request("a", [10, 11])]), sampled=77)
    decode = run(batch, step(Item("a", 2, 1)))
    assert decode.host.shape.kind is StepKind.DECODE
    assert decode.host.token_ids.tolist() == [77]
    assert decode.host.positions.tolist() == [2]


def test_a_row_without_a_token_leaves_an_id_for_the_step_that_is_under_way() -> None:
    batch = make_batch()
    run(batch, step(Item("a", 0, 2, [3]), new=[request("a", [10, 11])]), sampled=-1)
    assert run(batch, step(Item("a", 2, 1))).host.token_ids.tolist() == [0]


def test_prefill_and_decode_share_a_step() -> None:
    batch = make_batch()
    run(batch, step(Item("a", 0, 2, [3]), new=[request("a", [10, 11])]), sampled=77)
    mixed = run(batch, step(Item("b", 0, 3, [5]), Item("a", 2, 1), new=[request("b", [20, 21, 22])])).host
    assert mixed.shape.kind is StepKind.MIXED
    assert mixed.token_ids.tolist() == [20, 21, 22, 77]
    assert mixed.token_rows.tolist() == [0, 0, 0, 1]
    assert mixed.query_start.tolist() == [0, 3, 4]
    assert mixed.logits_rows.tolist() == [2, 3]
    assert mixed.block_tables[0][:, 0].tolist() == [5, 3]


def test_padding_belongs_to_no_request_and_writes_to_the_null_block() -> None:
    host = run(make_batch(Padded()), step(Item("a", 0, 3, [3]), new=[request("a", [10, 11, 12])])).host
    assert host.token_ids.tolist() == [10, 11, 12, 0, 0, 0, 0, 0]
    assert host.token_rows.tolist() == [0, 0, 0, -1, -1, -1, -1, -1]
    assert host.slot_mapping[0].tolist() == [12, 13, 14, 0, 0, 0, 0, 0]
    assert host.seq_lens.tolist() == [3, 0, 0, 0]
    assert host.query_start.tolist() == [0, 3, 3, 3, 3]
    assert host.sampling.temperature.shape == (4,)


def test_a_preempted_request_comes_back_with_the_tokens_it_had() -> None:
    batch = make_batch()
    run(batch, step(Item("a", 0, 2, [3]), new=[request("a", [10, 11])]), sampled=77)
    batch.apply(step(preempted_request_ids=("a",)))
    resumed = run(batch, step(Item("a", 0, 3, [9]), resumed_request_ids=("a",)))
    assert resumed.host.token_ids.tolist() == [10, 11, 77]
    assert resumed.host.slot_mapping[0].tolist() == [36, 37, 38]
    assert resumed.sampling.tolist() == [0]


def test_the_row_and_the_id_of_a_finished_request_are_used_again() -> None:
    batch = make_batch()
    for number in range(9):
        fresh = step(
            Item("a", 0, 2, [3]),
            new=[request("a", [number, number + 1])],
            finished_request_ids=("a",) if number else (),
        )
        host = run(batch, fresh, sampled=5).host
        assert host.token_ids.tolist() == [number, number + 1]
        assert host.block_tables[0][0].tolist() == [3, 0, 0, 0, 0, 0]


def test_an_end_may_be_told_without_any_token() -> None:
    batch = make_batch()
    run(batch, step(Item("a", 0, 2, [3]), new=[request("a", [10, 11])]), sampled=77)
    batch.apply(step(finished_request_ids=("a",)))
    with pytest.raises(KeyError):
        batch.apply(step(Item("a", 2, 1)))


def test_prompt_positions_are_scored_once_each_also_when_chunked_and_preempted() -> None:
    batch = make_batch()
    first = run(
        batch, step(Item("a", 0, 3, [3]), new=[request("a", [10, 11, 12, 13, 14], prompt_logprobs=1)])
    )
    assert np.concatenate(first.host.prompt_rows).tolist() == [0, 1, 2]
    assert np.concatenate(first.host.prompt_targets).tolist() == [11, 12, 13]
    batch.apply(step(preempted_request_ids=("a",)))
    second = run(batch, step(Item("a", 0, 5, [3, 4]), resumed_request_ids=("a",)))
    assert np.concatenate(second.host.prompt_rows).tolist() == [3]
    assert np.concatenate(second.host.prompt_targets).tolist() == [14]
    assert [(part.start, part.stop) for part in second.prompt_scoring] == [(0, 1)]


def test_scored_positions_come_in_chunks_of_the_padded_request_count() -> None:
    prompt = list(range(10, 17))
    prepared = run(
        make_batch(Padded()), step(Item("a", 0, 7, [3, 4]), new=[request("a", prompt, prompt_logprobs=0)])
    )
    assert [chunk.tolist() for chunk in prepared.host.prompt_rows] == [[0, 1, 2, 3], [4, 5, 5, 5]]
    assert [chunk.tolist() for chunk in prepared.host.prompt_targets] == [[11, 12, 13, 14], [15, 16, 16, 16]]


def test_log_probabilities_are_asked_of_the_step_and_change_no_sampler() -> None:
    asked = {"a": 1, "b": 3, "c": None}
    new = [request(name, [10, 11], temperature=0, logprobs=count) for name, count in asked.items()]
    items = [Item(name, 0, 2, [block]) for block, name in enumerate(asked, start=3)]
    prepared = run(make_batch(), step(*items, new=new))
    assert prepared.host.num_logprobs == 3
    assert prepared.host.sampling.kind == SamplingKind(all_greedy=True)


@pytest.mark.parametrize(("size", "expected"), [(1, None), (2, 0)])
def test_only_requests_that_sample_ask_for_log_probabilities(size: int, expected: int | None) -> None:
    new = [request("a", [10, 11], logprobs=0)]
    assert run(make_batch(), step(Item("a", 0, size, [3]), new=new)).host.num_logprobs == expected


DRAFTS = Ragged.from_rows([[21, 22], []])


def drafting_batch() -> tuple[InputBatch, PreparedStep]:
    """A decode of "a" with two drafts beside the first chunk of "b"."""
    batch = make_batch(Padded())
    run(batch, step(Item("a", 0, 3, [3]), new=[request("a", [10, 11, 12])]), sampled=13)
    message = step(Item("a", 3, 3, [5]), Item("b", 0, 2, [4]), new=[request("b", [30, 31, 32])])
    return batch, run(batch, replace(message, draft_token_ids=DRAFTS))


def test_drafts_are_computed_after_the_known_tokens() -> None:
    host = drafting_batch()[1].host
    assert host.token_ids.tolist() == [13, 21, 22, 30, 31, 0, 0, 0]
    assert host.positions.tolist() == [3, 4, 5, 0, 1, 0, 0, 0]
    assert host.slot_mapping[0].tolist() == [15, 20, 21, 16, 17, 0, 0, 0]
    assert host.seq_lens.tolist() == [6, 2, 0, 0]


def test_every_draft_has_a_row_of_the_sampler_and_requests_keep_theirs() -> None:
    prepared = drafting_batch()[1]
    host = prepared.host
    assert host.num_reqs == 2
    assert host.query_start.tolist() == [0, 3, 5, 5, 5]
    assert host.logits_rows.tolist() == [0, 1, 2, 4]
    assert host.sampling.temperature.tolist() == [1, 1, 1, 1]
    assert prepared.sampling.tolist() == [0]
    assert prepared.drafts is not None
    assert prepared.drafts.requests.tolist() == [0, 0, 0, 1]


def test_the_shape_has_a_row_for_every_draft() -> None:
    asked = []

    class Exact(ExactShapes):
        def pad(self, num_tokens: int, num_reqs: int, kind: StepKind) -> StepShape:
            asked.append((num_tokens, num_reqs, kind))
            return super().pad(num_tokens, num_reqs, kind)

    batch = make_batch(Exact())
    run(batch, step(Item("a", 0, 3, [3]), new=[request("a", [10, 11, 12])]), sampled=13)
    run(batch, replace(step(Item("a", 3, 3, [5])), draft_token_ids=Ragged.from_rows([[21, 22]])))
    assert asked == [(3, 1, StepKind.MIXED), (3, 3, StepKind.MIXED)]


def test_what_was_sampled_takes_the_place_of_rejected_drafts() -> None:
    batch, prepared = drafting_batch()
    row = prepared.rows[[0, 0]]
    batch.commit(row, np.array([21, 99], dtype=np.int32), np.array([0, 1], dtype=np.int32))

    after = run(batch, step(Item("a", 5, 1)))

    assert batch.num_tokens[row[0]] == 6
    assert after.host.token_ids[0] == 99
    assert after.host.positions[0] == 5
    assert after.sampling.tolist() == [0]
    batch.apply(step(preempted_request_ids=("a",)))
    resumed = run(batch, step(Item("a", 0, 6, [6, 7]), resumed_request_ids=("a",))).host
    assert resumed.token_ids[:6].tolist() == [10, 11, 12, 13, 21, 99]
