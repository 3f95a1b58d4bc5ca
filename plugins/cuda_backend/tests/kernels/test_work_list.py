"""Work lists cover each visible position once, in balanced spans, in arrays of the padded step's size."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from core_engine_cuda.kernels.layer_work import LayerWork, layer_works
from core_engine_cuda.kernels.tiles import WorkKind
from core_engine_cuda.kernels.work_list import ITEM_FIELDS, JOIN_FIELDS, SPAN_GRANULE, WorkPlan
from hypothesis import given
from hypothesis import strategies as st

from core_engine.plugin.runtime import HostStep
from core_engine.testing.attention_case import AttentionCase

REQUESTS = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 60)), min_size=1, max_size=6)


def step_of(requests: list[tuple[int, int]], pad: tuple[int, int] | None = None) -> HostStep:
    case = AttentionCase(requests, num_heads=1, num_kv_heads=1, head_dim=1)
    return case.host_step({i: (past, past + new) for i, (past, new) in enumerate(requests)}, pad)


def plan(kind: WorkKind, *, spare_items: int = 8, window: int | None = None) -> WorkPlan:
    tokens = 1 if kind is WorkKind.DECODE else 16
    return WorkPlan(kind=kind, tile_tokens=tokens, spare_items=spare_items, window=window)


@given(
    requests=REQUESTS,
    spare_items=st.integers(1, 40),
    window=st.none() | st.integers(1, 2000),
    pad=st.integers(0, 40),
)
def test_every_token_sees_every_visible_position_once(
    requests: list[tuple[int, int]], spare_items: int, window: int | None, pad: int
) -> None:
    num_tokens = sum(new for _, new in requests)
    step = step_of(requests, (num_tokens + pad, len(requests) + pad))
    seen: dict[int, list[tuple[int, int]]] = defaultdict(list)
    rows = {}
    for kind in WorkKind:
        items, _ = plan(kind, spare_items=spare_items, window=window).build(step, 16)
        for request, first, count, position, start, end, _, _ in items.tolist():
            for token in range(first, first + count):
                seen[token].append((start, end))
                rows[token] = request
                if token < num_tokens and step.shape.kind == "mixed":
                    assert position + token - first == step.positions[token]
        if step.shape.kind == "decode":
            break
    assert sorted(seen) == list(range(num_tokens + pad))
    for token, spans in seen.items():
        if token >= num_tokens:
            assert spans == [(0, 0)]
            continue
        assert rows[token] == step.token_rows[token]
        spans.sort()
        assert all(end == start for (_, end), (start, _) in pairwise(spans))
        position = step.positions[token]
        first_visible = 0 if window is None else max(0, position - window + 1)
        assert spans[0][0] <= first_visible
        assert spans[-1][1] > position


@given(requests=REQUESTS, spare_items=st.integers(1, 40))
def test_partial_results_have_places_of_their_own_and_are_joined(
    requests: list[tuple[int, int]], spare_items: int
) -> None:
    for kind in WorkKind:
        one = plan(kind, spare_items=spare_items)
        items, joins = one.build(step_of(requests), 16)
        partials = sorted(item[6] for item in items.tolist() if item[2] and item[6] >= 0)
        assert partials == list(range(len(partials)))
        assert len(partials) <= one.max_partials
        joined = [range(first, first + count) for _, tokens, first, count in joins.tolist() if tokens]
        assert sorted(partial for join in joined for partial in join) == partials
        assert all(len(join) > 1 for join in joined)


def test_a_long_request_is_divided_and_short_ones_beside_it_are_not() -> None:
    items, joins = plan(WorkKind.DECODE, spare_items=32).build(step_of([(99_999, 1), *[(999, 1)] * 63]), 16)
    spans = np.bincount(items[items[:, 2] > 0, 0])
    assert spans[0] == 20
    assert (spans[1:] == 1).all()
    assert joins[joins[:, 1] > 0].tolist() == [[0, 1, 0, 20]]


def test_requests_of_one_length_that_fill_the_device_are_not_divided() -> None:
    items, joins = plan(WorkKind.DECODE, spare_items=32).build(step_of([(3999, 1)] * 64), 16)
    assert (items[:, 2] > 0).sum() == 64
    assert not joins.any()


def test_no_span_is_shorter_than_a_tile_of_keys() -> None:
    items, _ = plan(WorkKind.DECODE, spare_items=1000).build(step_of([(999, 1)]), 16)
    real = items[items[:, 2] > 0]
    assert len(real) == -(-1000 // SPAN_GRANULE)
    assert (real[:-1, 5] - real[:-1, 4] == SPAN_GRANULE).all()


def test_a_window_leaves_out_whole_blocks_only() -> None:
    items, _ = plan(WorkKind.DECODE, window=40).build(step_of([(99, 1)]), 16)
    assert items[0, 4:6].tolist() == [48, 100]  # 100 - 40 = 60, in the block that begins at 48


def test_long_tiles_stand_first() -> None:
    items, _ = plan(WorkKind.PREFILL, spare_items=1).build(step_of([(0, 20), (400, 20), (90, 20)]), 16)
    lengths = items[:, 5] - items[:, 4]
    assert (np.diff(lengths) <= 0).all()


def test_single_tokens_of_a_mixed_step_are_decode_work() -> None:
    step = step_of([(30, 1), (0, 20), (12, 1)])
    decode, _ = plan(WorkKind.DECODE).build(step, 16)
    prefill, _ = plan(WorkKind.PREFILL).build(step, 16)
    assert sorted(decode[decode[:, 2] > 0, 0].tolist()) == [0, 2]
    assert set(prefill[prefill[:, 2] > 0, 0].tolist()) == {1}


@pytest.mark.parametrize("kind", WorkKind)
def test_sizes_depend_on_the_padded_shape_only(kind: WorkKind) -> None:
    few = step_of([(3, 1), (0, 9)], (64, 8))
    many = step_of([(0, 20), (2, 30), (7, 4), (5000, 1)], (64, 8))
    for step in (few, many):
        items, joins = plan(kind).build(step, 16)
        tiles = 8 if kind is WorkKind.DECODE else 64 // 16 + 8 + 1
        assert items.shape == (tiles + 8, ITEM_FIELDS)
        assert joins.shape == (8, JOIN_FIELDS)
        assert items.dtype == joins.dtype == np.int32


def works(**change: int) -> tuple[LayerWork, LayerWork]:
    asked = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "head_dim_v": 128, "element_bytes": 2}
    return layer_works(**{**asked, **change}, window=None, num_sms=132, major=9)


def test_spare_items_fill_the_multiprocessors() -> None:
    decode, prefill = works()
    assert decode.plan.spare_items * decode.num_head_tiles == 2 * 132
    assert prefill.plan.spare_items == 17  # ceil(132 / 8)


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "decode_heads", "head_tiles", "tile_tokens"),
    [(32, 8, 4, 8, 32), (9, 3, 3, 3, 42), (71, 1, 16, 5, 1), (8, 8, 1, 8, 128)],
)
def test_heads_that_share_keys_share_a_tile(
    num_heads: int, num_kv_heads: int, decode_heads: int, head_tiles: int, tile_tokens: int
) -> None:
    decode, prefill = works(num_heads=num_heads, num_kv_heads=num_kv_heads)
    assert (decode.tile_heads, decode.num_head_tiles) == (decode_heads, head_tiles)
    assert prefill.plan.tile_tokens == tile_tokens
    assert prefill.plan.tile_tokens * prefill.tile_heads <= prefill.tile.rows
